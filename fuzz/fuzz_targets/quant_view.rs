//! Any bytes as a matrix in every encoding: refused, or every row decodes, in the whole and in slices.
#![no_main]

use kimi_quant::int::{Bits, Levels, ScaleType};
use kimi_quant::mxfp4::{Mxfp4BandsView, decode_scales};
use kimi_quant::{Bf12View, Bf16, DenseView, Encoding, IntFormat, IntView, MatrixView, Mxfp4View, bf12, kv};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, u16, Vec<u8>)| {
    let (kind, rows, cols, bytes) = input;
    // Small shapes are many runs.
    let shape = [usize::from(rows % 40), usize::from(cols % 300)];
    let view: Option<MatrixView<'_>> = match kind % 6 {
        0 => DenseView::<f32>::new(shape, &bytes).ok().map(Into::into),
        1 => DenseView::<Bf16>::new(shape, &bytes).ok().map(Into::into),
        2 => {
            let codes = (shape[0] * shape[1] / 2).min(bytes.len());
            Mxfp4View::new(shape, &bytes[..codes], &bytes[codes..]).ok().map(Into::into)
        }
        3 => Mxfp4BandsView::new(shape, &bytes).ok().map(Into::into),
        4 => {
            // Encoding reads any BF16 bytes; decoding gives them back.
            if let Ok(coded) = bf12::encode(shape, &bytes) {
                let view = Bf12View::new(shape, &coded).expect("just encoded");
                assert_eq!(bf12::decode(view), bytes);
            }
            Bf12View::new(shape, &bytes).ok().map(Into::into)
        }
        _ => {
            let bits = Bits::ALL[usize::from(kind / 6) % 5];
            let levels = [Levels::Symmetric, Levels::ZeroPoint, Levels::Codebook][usize::from(kind / 30) % 3];
            let format = IntFormat::new(bits, 32 << (kind / 90), levels, ScaleType::F16);
            // Bytes of the right length, made of what there is.
            let padded = format.and_then(|format| {
                let mut padded = bytes.clone();
                padded.resize(format.matrix_bytes(shape).ok()?, 0x5a);
                Some((format, padded))
            });
            if let Some((format, padded)) = padded {
                walk(IntView::new(shape, format, &padded).expect("of that length").into());
            }
            None
        }
    };
    if let Some(view) = view {
        walk(view);
    }
    let _ = decode_scales(&bytes, shape);
    for format in [kv::RowFormat::I8, kv::RowFormat::I4] {
        if bytes.len() == format.bytes(shape[1]) {
            let mut row = vec![0.0; shape[1]];
            format.decode(&bytes, shape[0].min(shape[1]), &mut row);
        }
    }
    let _ = std::str::from_utf8(&bytes).map(str::parse::<Encoding>);
});

/// Decodes every row, and every row of a slice.
fn walk(view: MatrixView<'_>) {
    let (mut row, mut again) = (vec![0.0; view.cols()], vec![0.0; view.cols()]);
    let multiple = view.encoding().row_multiple();
    let first = view.rows() / 2 / multiple * multiple;
    let part = view.slice_rows(first..view.rows());
    for r in 0..view.rows() {
        view.decode_row(r, &mut row);
        if r >= first {
            part.decode_row(r - first, &mut again);
            assert!(row.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}
