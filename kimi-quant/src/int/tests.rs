extern crate std;

use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use kimi_testing::Seeded;
use proptest::prelude::*;

use super::*;

pub(crate) fn formats() -> Vec<IntFormat> {
    let mut formats = Vec::new();
    for bits in Bits::ALL {
        for group in [32, 64, 128] {
            for levels in [Levels::Symmetric, Levels::ZeroPoint, Levels::Codebook] {
                for scale in [ScaleType::Bf16, ScaleType::F16] {
                    formats.extend(IntFormat::new(bits, group, levels, scale));
                }
            }
        }
    }
    formats
}

#[test]
fn names_are_read_back() {
    for format in formats() {
        assert_eq!(format.to_string().parse(), Ok(format));
    }
    let defaults =
        ["i8", "i6", "i4", "i3:zp", "i4:cb"].map(|name| name.parse::<IntFormat>().unwrap().to_string());
    assert_eq!(defaults, ["i8:g128", "i6:g64", "i4:g32", "i3:g32:zp", "i4:g32:cb"]);
    for wrong in ["", "i5", "i4:", "i4:g48", "i8:cb", "i4:g32:zp:cb", "i4:zp:g32", "i4:f32"] {
        assert_eq!(wrong.parse::<IntFormat>(), Err(UnknownFormat), "{wrong}");
    }
}

#[test]
fn three_bits_are_three_bits() {
    let size = |name: &str, shape| name.parse::<IntFormat>().unwrap().matrix_bytes(shape).unwrap();
    assert_eq!(size("i3", [8, 32]), 8 * 32 * 3 / 8 + 16);
    assert_eq!(size("i4", [8, 128]), 8 * 128 / 2 + 4 * 16);
    assert_eq!(size("i4:g128:zp", [9, 129]), 2 * (5 * 128 + 2 * 20));
    assert_eq!(size("i4:cb", [8, 32]), 16 + 128 + 16);
    assert_eq!((size("i6", [0, 77]), size("i2", [77, 0])), (0, 0));
    let large = "i8".parse::<IntFormat>().unwrap().matrix_bytes([usize::MAX / 2, usize::MAX / 2]);
    assert!(matches!(large, Err(LayoutError::TooLarge { .. })));
}

/// The place of every field, written down once more, the long way.
#[test]
fn fields_lie_where_the_documentation_says() {
    let places = |bits: Bits, r, c| {
        let mut block = vec![0u8; 32 * 8];
        let mut codes = vec![0; c + 1];
        codes[c] = if bits == Bits::I8 { -1 } else { (1 << bits.count()) - 1 };
        pack_block(bits, &codes, r, &mut block);
        block
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte > 0)
            .map(|(at, &byte)| (at, byte))
            .collect::<Vec<_>>()
    };
    assert_eq!(places(Bits::I4, 0, 0), [(0, 0x0f)]);
    assert_eq!(places(Bits::I4, 3, 5), [(13, 0xf0)]);
    assert_eq!(places(Bits::I4, 7, 31), [(96 + 31, 0xf0)]);
    assert_eq!(places(Bits::I8, 2, 6), [(32 + 10, 0xff)]);
    assert_eq!(places(Bits::I2, 1, 9), [(5, 0x30)]);
    assert_eq!(places(Bits::I3, 1, 9), [(5, 0x30), (64 + 5, 0x04)]);
    assert_eq!(places(Bits::I6, 1, 9), [(32 + 5, 0x0f), (128 + 5, 0x30)]);
}

#[test]
fn codes_come_back_from_every_place() {
    let mut seeded = Seeded::new(3);
    for bits in Bits::ALL {
        let [low, high] = bits.range();
        let codes: Vec<Vec<i32>> = (0..8)
            .map(|_| (0..32).map(|_| low + seeded.below((high - low + 1) as usize) as i32).collect())
            .collect();
        let mut block = vec![0u8; 32 * bits.count()];
        for (r, codes) in codes.iter().enumerate() {
            pack_block(bits, codes, r, &mut block);
        }
        for (r, row) in codes.iter().enumerate() {
            for (c, &code) in row.iter().enumerate() {
                assert_eq!(unpack(bits, &block, r, c), code, "{bits:?} {r} {c}");
            }
        }
    }
}

#[test]
fn a_wrong_length_and_a_cut_inside_a_band_are_refused() {
    let format: IntFormat = "i4".parse().unwrap();
    let error = IntView::new([9, 40], format, &[0; 3]).unwrap_err();
    assert_eq!(error, LayoutError::Length { plane: "weights", expected: 2 * 2 * (16 + 128), found: 3 });
    let bytes = vec![0; format.matrix_bytes([20, 40]).unwrap()];
    let view = IntView::new([20, 40], format, &bytes).unwrap();
    assert_eq!(view.slice_rows(16..20).rows(), 4);
    assert_eq!(view.slice_rows(20..20).rows(), 0);
    assert!(std::panic::catch_unwind(|| view.slice_rows(4..8)).is_err());
    assert!(std::panic::catch_unwind(|| view.slice_rows(0..12)).is_err());
}

proptest! {
    #[test]
    fn slices_are_the_rows_of_the_whole(at in 0usize..3, format in prop::sample::select(formats()), rows in 1usize..30, cols in 1usize..200, seed: u64) {
        // Any bytes are a matrix.
        let bytes = Seeded::new(seed).bytes(format.matrix_bytes([rows, cols]).unwrap());
        let view = IntView::new([rows, cols], format, &bytes).unwrap();
        let first = (at * 8).min(rows / 8 * 8);
        let part = view.slice_rows(first..rows);
        let (mut a, mut b) = (vec![0.0; cols], vec![0.0; cols]);
        for row in first..rows {
            view.decode_row(row, &mut a);
            part.decode_row(row - first, &mut b);
            prop_assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}
