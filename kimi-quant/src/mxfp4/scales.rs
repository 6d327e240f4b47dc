//! A compact code for planes of E8M0 scales.
//!
//! The scales of a row lie close together: most are a base byte or one of the next two. A row is its base, its number of escapes
//! (u16), two bits per scale from the lowest bits up (0 to 2 are added to the base, 3 is an escape), and one byte for each escape.

use alloc::vec::Vec;

use crate::LayoutError;

const ESCAPE: u8 = 3;

/// Encodes `rows` rows of `groups` scales.
///
/// # Errors
/// [`LayoutError`] when `plane` is not `rows * groups` bytes or a row has more than 65,535 groups.
pub fn encode_scales(plane: &[u8], [rows, groups]: [usize; 2]) -> Result<Vec<u8>, LayoutError> {
    let expected = rows.checked_mul(groups).ok_or(LayoutError::TooLarge { rows, cols: groups })?;
    if plane.len() != expected {
        return Err(LayoutError::Length { plane: "scales", expected, found: plane.len() });
    }
    if groups > usize::from(u16::MAX) {
        return Err(LayoutError::TooLarge { rows, cols: groups });
    }
    let mut bytes = Vec::new();
    for row in 0..rows {
        let scales = &plane[row * groups..][..groups];
        let base = best_base(scales);
        let escapes = || scales.iter().filter(|scale| scale.wrapping_sub(base) >= ESCAPE);
        bytes.push(base);
        bytes.extend_from_slice(&(escapes().count() as u16).to_le_bytes());
        bytes.extend(scales.chunks(4).map(|four| {
            let codes = four.iter().map(|scale| scale.wrapping_sub(base).min(ESCAPE));
            codes.enumerate().fold(0, |byte, (i, code)| byte | code << (2 * i))
        }));
        bytes.extend(escapes());
    }
    Ok(bytes)
}

/// The plane that [`encode_scales`] was given.
///
/// # Errors
/// [`LayoutError`] when `bytes` is no such code for this shape.
pub fn decode_scales(bytes: &[u8], [rows, groups]: [usize; 2]) -> Result<Vec<u8>, LayoutError> {
    let length = |expected| LayoutError::Length { plane: "coded scales", expected, found: bytes.len() };
    // A row takes three bytes at least: no more rows than that are believed.
    if rows > bytes.len() / 3 {
        return Err(length(rows.saturating_mul(3)));
    }
    let mut plane = Vec::new();
    let mut rest = bytes;
    for _ in 0..rows {
        let header = rest.first_chunk::<3>();
        let Some(&[base, low, high]) = header else { return Err(length(bytes.len() + 3)) };
        let (codes, escapes) = (groups.div_ceil(4), usize::from(u16::from_le_bytes([low, high])));
        let needed = codes.saturating_add(escapes).saturating_add(3);
        if rest.len() < needed {
            return Err(length((bytes.len() - rest.len()).saturating_add(needed)));
        }
        let (codes, mut raw) = (&rest[3..3 + codes], rest[3 + codes..needed].iter());
        for group in 0..groups {
            plane.push(match codes[group / 4] >> (2 * (group % 4)) & 3 {
                ESCAPE => *raw.next().ok_or_else(|| length(bytes.len() + 1))?,
                delta => base.wrapping_add(delta),
            });
        }
        if raw.next().is_some() {
            return Err(length(bytes.len() - 1));
        }
        rest = &rest[needed..];
    }
    if rest.is_empty() { Ok(plane) } else { Err(length(bytes.len() - rest.len())) }
}

/// The base that leaves the fewest escapes.
fn best_base(scales: &[u8]) -> u8 {
    let mut counts = [0usize; 256];
    scales.iter().for_each(|&scale| counts[usize::from(scale)] += 1);
    let covered =
        |base: u8| (0..ESCAPE).map(|delta| counts[usize::from(base.wrapping_add(delta))]).sum::<usize>();
    // Of equal ones the lowest, so that the code is a function of the plane.
    (0..=255).rev().max_by_key(|&base| covered(base)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use kimi_testing::Seeded;
    use proptest::prelude::*;

    use super::*;
    use crate::mxfp4::quantize;

    #[test]
    fn the_scales_of_a_normal_distribution_take_less_than_a_third() {
        let weights = Seeded::new(1).normals(64 * 3584, 0.02);
        let packed = quantize([64, 3584], &weights).unwrap();
        let coded = encode_scales(packed.scales(), [64, 112]).unwrap();
        let share = coded.len() as f64 / packed.scales().len() as f64;
        assert!(share < 0.30, "{share}");
        assert_eq!(decode_scales(&coded, [64, 112]).unwrap(), packed.scales());
    }

    #[test]
    fn damaged_codes_are_refused() {
        let plane: Vec<u8> = (0..=255).collect();
        let coded = encode_scales(&plane, [4, 64]).unwrap();
        assert_eq!(decode_scales(&coded, [4, 64]).unwrap(), plane);
        for wrong in [[4, 63], [4, 65], [3, 64], [5, 64], [usize::MAX, 1], [1, usize::MAX]] {
            assert!(decode_scales(&coded, wrong).is_err(), "{wrong:?}");
        }
        for len in 0..coded.len() {
            assert!(decode_scales(&coded[..len], [4, 64]).is_err());
        }
        assert!(encode_scales(&plane, [4, 63]).is_err());
    }

    proptest! {
        #[test]
        fn any_plane_comes_back(rows in 0usize..9, groups in 0usize..40, spread in 1usize..257, seed: u64) {
            let mut seeded = Seeded::new(seed);
            let first = seeded.below(256);
            let plane: Vec<u8> = (0..rows * groups).map(|_| (first + seeded.below(spread)) as u8).collect();
            let coded = encode_scales(&plane, [rows, groups]).unwrap();
            prop_assert_eq!(decode_scales(&coded, [rows, groups]).unwrap(), plane);
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), rows in 0usize..9, groups in 0usize..30) {
            if let Ok(plane) = decode_scales(&bytes, [rows, groups]) {
                prop_assert_eq!(plane.len(), rows * groups);
            }
        }
    }
}
