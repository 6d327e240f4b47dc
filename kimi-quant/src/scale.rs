//! The scalar formats: BF16 values and E8M0 scales.

use bytemuck::{Pod, Zeroable};

/// A bfloat16: the upper 16 bits of a float32 (1 sign, 8 exponent, 7 mantissa bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Bf16 {
    /// Rounds to nearest, ties to even. A NaN stays a NaN (made quiet, upper payload bits kept).
    pub const fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        if value.is_nan() {
            return Self((bits >> 16) as u16 | 0x40);
        }
        Self(((bits as u64 + 0x7fff + ((bits >> 16) & 1) as u64) >> 16) as u16)
    }

    /// The value, exactly.
    pub const fn to_f32(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }
}

/// An E8M0 scale: the power of two `2^(byte - 127)`; 255 is NaN (OCP Microscaling Formats v1.0, section 5.4.1).
///
/// Byte 0 is `2^-127`, which is a subnormal float32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct E8m0(pub u8);

impl E8m0 {
    /// The value, exactly.
    pub const fn to_f32(self) -> f32 {
        f32::from_bits(match self.0 {
            0 => 0x0040_0000,
            255 => 0x7fc0_0000,
            byte => (byte as u32) << 23,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_survives_the_trip_for_every_pattern() {
        for bits in 0..=u16::MAX {
            let value = Bf16(bits).to_f32();
            let back = Bf16::from_f32(value);
            if value.is_nan() {
                assert!(back.to_f32().is_nan());
            } else {
                assert_eq!(back, Bf16(bits));
            }
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_ties_to_even() {
        for (bits, expected) in [
            (0x3f80_7fff, 0x3f80),
            (0x3f80_8000, 0x3f80), // tie, even below
            (0x3f81_8000, 0x3f82), // tie, even above
            (0x3f80_8001, 0x3f81),
            (0x7f7f_ffff, 0x7f80), // the largest float32 overflows to infinity
            (0xff7f_ffff, 0xff80),
            (0x0000_8001, 0x0001), // subnormals round like the rest
        ] {
            assert_eq!(Bf16::from_f32(f32::from_bits(bits)).0, expected, "{bits:08x}");
        }
    }

    #[test]
    fn e8m0_is_exact_for_every_byte() {
        for byte in 0..255u8 {
            let expected = f64::from_bits((u64::from(byte) + 1023 - 127) << 52);
            assert_eq!(f64::from(E8m0(byte).to_f32()), expected, "byte {byte}");
        }
        assert!(E8m0(255).to_f32().is_nan());
    }
}
