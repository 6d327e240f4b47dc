//! Products of a block of a band with activations, by instructions whose intrinsics are not stable: codes below 64 are the same
//! bytes signed, so one signed product serves both kinds of level. Sums are exact 32-bit integers.

use std::arch::aarch64::*;
use std::arch::asm;

use bytemuck::must_cast;
use kimi_quant::int::BAND_ROWS;

use crate::vector::REGISTERS;

/// A register of a plane, or one sum per row.
type Rows = [int8x16_t; 2];

/// Four activations for each register of a block.
type Activations = [[i8; 4]; REGISTERS];

/// Adds to each row's sum its products with one column.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn dotprod(mut sums: Rows, w: &[Rows; REGISTERS], x: &Activations) -> Rows {
    let x: Rows = must_cast(*x);
    for (x, w) in x.into_iter().zip(w.as_chunks::<4>().0) {
        for (half, sum) in sums.iter_mut().enumerate() {
            // SAFETY: arithmetic on registers, with an instruction that the caller has.
            unsafe {
                asm!(
                    "sdot {sum:v}.4s, {w0:v}.16b, {x:v}.4b[0]",
                    "sdot {sum:v}.4s, {w1:v}.16b, {x:v}.4b[1]",
                    "sdot {sum:v}.4s, {w2:v}.16b, {x:v}.4b[2]",
                    "sdot {sum:v}.4s, {w3:v}.16b, {x:v}.4b[3]",
                    sum = inout(vreg) *sum,
                    w0 = in(vreg) w[0][half],
                    w1 = in(vreg) w[1][half],
                    w2 = in(vreg) w[2][half],
                    w3 = in(vreg) w[3][half],
                    x = in(vreg) x,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
        }
    }
    sums
}

/// Adds to each row's sums its products with two columns. An instruction multiplies eight columns of K of two rows with those of
/// two columns, into a 2 x 2 block of sums.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(super) fn i8mm(sums: [Rows; 2], w: &[Rows; REGISTERS], x: [&Activations; 2]) -> [Rows; 2] {
    // Of rows 0 and 1, 2 and 3, 4 and 5, 6 and 7: first row with both columns, then the second.
    let mut blocks = [vdupq_n_s32(0); BAND_ROWS / 2];
    let [first, second] = x.map(|x| must_cast::<_, [[i8; 8]; REGISTERS / 2]>(*x));
    for ((w, first), second) in w.as_chunks::<2>().0.iter().zip(first).zip(second) {
        let x: int8x16_t = must_cast([first, second]);
        for half in 0..2 {
            let [near, far] = w.map(|w| vreinterpretq_s32_s8(w[half]));
            let rows = [vzip1q_s32(near, far), vzip2q_s32(near, far)];
            for (block, rows) in blocks[2 * half..].iter_mut().zip(rows) {
                // SAFETY: arithmetic on registers, with an instruction that the caller has.
                unsafe {
                    asm!(
                        "smmla {block:v}.4s, {rows:v}.16b, {x:v}.16b",
                        block = inout(vreg) *block,
                        rows = in(vreg) rows,
                        x = in(vreg) x,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
            }
        }
    }
    let mut next = sums;
    for half in 0..2 {
        let (near, far) = (blocks[2 * half], blocks[2 * half + 1]);
        for (sums, products) in next.iter_mut().zip([vuzp1q_s32(near, far), vuzp2q_s32(near, far)]) {
            sums[half] = vreinterpretq_s8_s32(vaddq_s32(vreinterpretq_s32_s8(sums[half]), products));
        }
    }
    next
}

/// Adds to each row's sum its products with every column. Rows run along a scalable register; where it holds fewer than eight,
/// they go in turns, and where it holds more, a predicate leaves the rest out.
#[inline]
#[target_feature(enable = "neon,sve")]
pub(super) fn sve(sums: &mut [Rows], w: &[Rows; REGISTERS], x: &[&Activations]) {
    assert_eq!(sums.len(), x.len(), "sums for every column");
    if x.is_empty() {
        return;
    }
    // SAFETY: the caller has the instructions. The predicate keeps to the 8 words of each of `REGISTERS` registers of `w` and of
    // each element of `sums`; there are as many pointers in `x` as elements in `sums`, and 32 bytes at each.
    unsafe {
        asm!(
            "ptrue p1.s",
            "mov {row}, xzr",
            "whilelo p0.s, {row}, {rows}",
            "2:",
            "add {at}, {w}, {row}, lsl #2",
            "ld1w {{z24.s}}, p0/z, [{at}]",
            "add {at}, {at}, #32",
            "ld1w {{z25.s}}, p0/z, [{at}]",
            "add {at}, {at}, #32",
            "ld1w {{z26.s}}, p0/z, [{at}]",
            "add {at}, {at}, #32",
            "ld1w {{z27.s}}, p0/z, [{at}]",
            "add {at}, {at}, #32",
            "ld1w {{z28.s}}, p0/z, [{at}]",
            "add {at}, {at}, #32",
            "ld1w {{z29.s}}, p0/z, [{at}]",
            "add {at}, {at}, #32",
            "ld1w {{z30.s}}, p0/z, [{at}]",
            "add {at}, {at}, #32",
            "ld1w {{z31.s}}, p0/z, [{at}]",
            "add {sum}, {sums}, {row}, lsl #2",
            "mov {column}, {x}",
            "mov {left}, {count}",
            "3:",
            "ldr {at}, [{column}], #8",
            // Four words of activations in every 128 bits, of which the products select one each.
            "ld1rqw {{z0.s}}, p1/z, [{at}]",
            "ld1rqw {{z1.s}}, p1/z, [{at}, #16]",
            "ld1w {{z2.s}}, p0/z, [{sum}]",
            "mov z3.s, #0",
            "sdot z2.s, z24.b, z0.b[0]",
            "sdot z3.s, z28.b, z1.b[0]",
            "sdot z2.s, z25.b, z0.b[1]",
            "sdot z3.s, z29.b, z1.b[1]",
            "sdot z2.s, z26.b, z0.b[2]",
            "sdot z3.s, z30.b, z1.b[2]",
            "sdot z2.s, z27.b, z0.b[3]",
            "sdot z3.s, z31.b, z1.b[3]",
            "add z2.s, z2.s, z3.s",
            "st1w {{z2.s}}, p0, [{sum}]",
            "add {sum}, {sum}, #32",
            "subs {left}, {left}, #1",
            "b.ne 3b",
            "incw {row}",
            "whilelo p0.s, {row}, {rows}",
            "b.mi 2b",
            row = out(reg) _,
            at = out(reg) _,
            sum = out(reg) _,
            column = out(reg) _,
            left = out(reg) _,
            rows = in(reg) BAND_ROWS,
            w = in(reg) w.as_ptr(),
            sums = in(reg) sums.as_mut_ptr(),
            x = in(reg) x.as_ptr(),
            count = in(reg) x.len(),
            out("p0") _, out("p1") _,
            out("v0") _, out("v1") _, out("v2") _, out("v3") _,
            out("v24") _, out("v25") _, out("v26") _, out("v27") _,
            out("v28") _, out("v29") _, out("v30") _, out("v31") _,
            options(nostack),
        );
    }
}
