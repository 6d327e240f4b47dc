//! The codes of 8 rows x 32 columns, split into planes of single bits, pairs, nibbles and bytes.

use super::{BAND_ROWS, Bits};

/// Columns of a block.
pub const BLOCK_COLUMNS: usize = 32;

/// Bytes of a register of a plane: four columns of eight rows, one byte each.
pub const REGISTER_BYTES: usize = 4 * BAND_ROWS;

/// The widths of the planes, the one with the lowest bits first; 0 where there is no second.
const fn widths(bits: Bits) -> [usize; 2] {
    match bits {
        Bits::I2 => [2, 0],
        Bits::I3 => [2, 1],
        Bits::I4 => [4, 0],
        Bits::I6 => [4, 2],
        Bits::I8 => [8, 0],
    }
}

/// Where the field of row `r` and column `c` lies in a plane: its byte, and how far it is shifted.
fn place(width: usize, r: usize, c: usize) -> (usize, usize) {
    let columns = 4 * (8 / width);
    (c / columns * REGISTER_BYTES + 4 * r + c % 4, c % columns / 4 * width)
}

/// The code of row `r` and column `c` of a block.
pub(crate) fn unpack(bits: Bits, block: &[u8], r: usize, c: usize) -> i32 {
    if bits == Bits::I8 {
        return i32::from(block[place(8, r, c).0] as i8);
    }
    let (mut code, mut filled, mut plane) = (0, 0, block);
    for width in widths(bits).into_iter().filter(|&width| width > 0) {
        let (byte, shift) = place(width, r, c);
        code |= (i32::from(plane[byte]) >> shift & ((1 << width) - 1)) << filled;
        filled += width;
        plane = &plane[REGISTER_BYTES * width..];
    }
    code
}

/// Writes the codes of one row of a block, which holds zeros in the places of this row.
pub(crate) fn pack_block(bits: Bits, codes: &[i32], r: usize, block: &mut [u8]) {
    for (c, &code) in codes.iter().enumerate() {
        let (mut code, mut from) = (code as u8, 0);
        for width in widths(bits).into_iter().filter(|&width| width > 0) {
            let (byte, shift) = place(width, r, c);
            let field = if width == 8 { code } else { code & ((1 << width) - 1) };
            block[from + byte] |= field << shift;
            code = code.checked_shr(width as u32).unwrap_or(0);
            from += REGISTER_BYTES * width;
        }
    }
}
