//! The scalar formats: BF16 and F16 values, E8M0 scales.

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

/// An IEEE 754 half: 1 sign, 5 exponent, 10 mantissa bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct F16(pub u16);

impl F16 {
    /// Rounds to nearest, ties to even; values from 65,520 on become infinite. A NaN stays a NaN.
    pub const fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let sign = (bits >> 16 & 0x8000) as u16;
        let magnitude = bits & 0x7fff_ffff;
        if magnitude > 0x7f80_0000 {
            return Self(sign | 0x7e00 | (magnitude >> 13) as u16 & 0x3ff);
        }
        if magnitude >= 0x4780_0000 {
            return Self(sign | 0x7c00);
        }
        if magnitude < 0x3880_0000 {
            // Below the smallest normal half: adding 0.5 leaves the result, rounded, in the lowest mantissa bits.
            return Self(sign | (f32::from_bits(magnitude) + 0.5).to_bits() as u16);
        }
        let odd = magnitude >> 13 & 1;
        Self(sign | ((magnitude - (112 << 23) + 0xfff + odd) >> 13) as u16)
    }

    /// The value, exactly.
    pub const fn to_f32(self) -> f32 {
        let sign = (self.0 as u32 & 0x8000) << 16;
        let (exponent, mantissa) = (self.0 as u32 >> 10 & 31, self.0 as u32 & 0x3ff);
        let magnitude = match exponent {
            0 => (mantissa as f32 * f32::from_bits(0x3380_0000)).to_bits(), // 2^-24
            31 => 0x7f80_0000 | mantissa << 13,
            _ => (exponent + 112) << 23 | mantissa << 13,
        };
        f32::from_bits(sign | magnitude)
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
    fn halves_survive_the_trip_for_every_pattern() {
        for bits in 0..=u16::MAX {
            let value = F16(bits).to_f32();
            let back = F16::from_f32(value);
            assert!(back == F16(bits) || value.is_nan() && back.to_f32().is_nan(), "{bits:04x}");
        }
        let pairs = [(1.0, 0x3c00), (-65504.0, 0xfbff), (5.960_464_5e-8, 1), (0.1, 0x2e66), (6.1e-5, 0x03ff)];
        for (value, bits) in pairs {
            assert_eq!(F16::from_f32(value).0, bits, "{value}");
        }
    }

    #[test]
    fn halves_round_to_nearest_ties_to_even() {
        for bits in (0..0x7c00u16).step_by(7) {
            let (low, high) = (F16(bits).to_f32(), F16(bits + 1).to_f32());
            if high.is_infinite() {
                continue;
            }
            let middle = low + (high - low) / 2.0;
            let even = if bits.is_multiple_of(2) { bits } else { bits + 1 };
            assert_eq!(F16::from_f32(middle).0, even, "{bits:04x}");
            assert_eq!(F16::from_f32(f32::from_bits(middle.to_bits() + 1)).0, bits + 1);
            assert_eq!(F16::from_f32(f32::from_bits(middle.to_bits() - 1)).0, bits);
        }
        assert_eq!((F16::from_f32(65519.0).0, F16::from_f32(65520.0).0), (0x7bff, 0x7c00));
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
