//! The first bytes of a saved session.

use twox_hash::XxHash3_64;

use super::problem::StateProblem;
use crate::fingerprint::Fingerprint;
use crate::kv::KvFormat;
use crate::operand::Arith;
use crate::sampler::RandomState;

/// What a saved session begins with.
pub const MAGIC: [u8; 8] = *b"KIMI-KV\x1a";

/// The format that this program writes and reads.
pub const VERSION: u32 = 1;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 128;

/// Bytes of a checksum.
pub(super) const SUM_BYTES: u64 = 8;

const KV_CODES: [KvFormat; 4] = [KvFormat::F32, KvFormat::Bf16, KvFormat::I8, KvFormat::I4];
const ARITH_CODES: [Arith; 2] = [Arith::Exact, Arith::Fast];

/// The header of a saved session: what it was made with and how large its parts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub(super) kv: KvFormat,
    pub(super) arith: Arith,
    pub(super) fingerprint: Fingerprint,
    pub(super) position: u64,
    pub(super) tokens: u64,
    pub(super) random: Option<RandomState>,
    pub(super) sizes: Sizes,
}

/// How large the parts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) kda_layers: u32,
    pub(super) mla_layers: u32,
    /// Floats of a layer's recurrent state.
    pub(super) state: u64,
    /// Floats of a layer's convolution tails.
    pub(super) tails: u64,
    /// Bytes of a stored row of latents.
    pub(super) row_bytes: u64,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// [`StateProblem::NotAState`], [`StateProblem::Version`] or [`StateProblem::Damaged`].
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, StateProblem> {
        if bytes[..8] != MAGIC {
            return Err(StateProblem::NotAState);
        }
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let found = u32_at(8);
        if found != VERSION {
            return Err(StateProblem::Version { found, known: VERSION });
        }
        let damaged = |part: &str| StateProblem::Damaged { part: format!("header: {part}") };
        if u64_at(SUM_AT) != XxHash3_64::oneshot(&bytes[..SUM_AT]) {
            return Err(damaged("its checksum is another"));
        }
        let (Some(&kv), Some(&arith)) =
            (KV_CODES.get(u32_at(12) as usize), ARITH_CODES.get(u32_at(96) as usize))
        else {
            return Err(damaged("an unknown number format"));
        };
        let random = match u32_at(100) {
            0 => None,
            1 => Some(RandomState { seed: u64_at(104), state: u64_at(112) }),
            _ => return Err(damaged("unknown flags")),
        };
        let header = Self {
            kv,
            arith,
            fingerprint: Fingerprint(bytes[16..48].try_into().expect("32 bytes")),
            position: u64_at(48),
            tokens: u64_at(56),
            random,
            sizes: Sizes {
                kda_layers: u32_at(64),
                mla_layers: u32_at(68),
                state: u64_at(72),
                tails: u64_at(80),
                row_bytes: u64_at(88),
            },
        };
        if header.tokens < header.position || header.file_bytes().is_none() {
            return Err(damaged("impossible sizes"));
        }
        Ok(header)
    }

    /// The bytes that [`parse`](Self::parse) reads.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let code = |place: Option<usize>| place.expect("every format has a code") as u32;
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &code(KV_CODES.iter().position(|&kv| kv == self.kv)).to_le_bytes());
        put(16, &self.fingerprint.0);
        put(48, &self.position.to_le_bytes());
        put(56, &self.tokens.to_le_bytes());
        put(64, &self.sizes.kda_layers.to_le_bytes());
        put(68, &self.sizes.mla_layers.to_le_bytes());
        put(72, &self.sizes.state.to_le_bytes());
        put(80, &self.sizes.tails.to_le_bytes());
        put(88, &self.sizes.row_bytes.to_le_bytes());
        put(96, &code(ARITH_CODES.iter().position(|&arith| arith == self.arith)).to_le_bytes());
        put(100, &u32::from(self.random.is_some()).to_le_bytes());
        if let Some(random) = self.random {
            put(104, &random.seed.to_le_bytes());
            put(112, &random.state.to_le_bytes());
        }
        let sum = XxHash3_64::oneshot(&bytes[..SUM_AT]);
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Tokens that the session has read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Tokens of the transcript: those read, and those pending.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The seed that the random numbers began with; `None` when nothing was generated.
    pub fn seed(&self) -> Option<u64> {
        self.random.map(|random| random.seed)
    }

    /// The number format of the latents.
    pub fn kv(&self) -> KvFormat {
        self.kv
    }

    /// The tier of arithmetic.
    pub fn arith(&self) -> Arith {
        self.arith
    }

    /// Bytes of the whole file; `None` when no file is so large.
    pub fn file_bytes(&self) -> Option<u64> {
        let Sizes { kda_layers, mla_layers, state, tails, row_bytes } = self.sizes;
        let tokens = self.tokens.checked_mul(4)?.checked_add(self.tokens.div_ceil(8))?;
        let kda = state.checked_add(tails)?.checked_mul(4)?.checked_add(SUM_BYTES)?;
        let kv = self.position.checked_mul(row_bytes)?.checked_add(SUM_BYTES)?;
        (HEADER_BYTES as u64)
            .checked_add(tokens)?
            .checked_add(SUM_BYTES)?
            .checked_add(kda.checked_mul(kda_layers.into())?)?
            .checked_add(kv.checked_mul(mla_layers.into())?)
    }
}

/// Where the header's own checksum lies.
const SUM_AT: usize = HEADER_BYTES - SUM_BYTES as usize;

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            kv: KvFormat::I4,
            arith: Arith::Fast,
            fingerprint: Fingerprint(std::array::from_fn(|i| i as u8)),
            position: 5,
            tokens: 9,
            random: Some(RandomState { seed: 3, state: u64::MAX }),
            sizes: Sizes { kda_layers: 2, mla_layers: 3, state: 100, tails: 10, row_bytes: 7 },
        }
    }

    /// A header with changed bytes and a checksum that fits them.
    fn parse_changed(change: impl FnOnce(&mut [u8; HEADER_BYTES])) -> Result<Header, StateProblem> {
        let mut bytes = header().to_bytes();
        change(&mut bytes);
        let sum = XxHash3_64::oneshot(&bytes[..SUM_AT]);
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        Header::parse(&bytes)
    }

    #[test]
    fn a_header_is_read_back() {
        for random in [None, header().random] {
            for (kv, arith) in [(KvFormat::F32, Arith::Exact), (KvFormat::I8, Arith::Fast)] {
                let header = Header { random, kv, arith, ..header() };
                assert_eq!(Header::parse(&header.to_bytes()), Ok(header));
            }
        }
        // 128, tokens 36 + 2 + 8, KDA 2 (440 + 8), MLA 3 (35 + 8).
        assert_eq!(header().file_bytes(), Some(128 + 46 + 2 * 448 + 3 * 43));
    }

    #[test]
    fn no_flipped_bit_passes() {
        for bit in 0..8 * HEADER_BYTES {
            let mut bytes = header().to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let problem = Header::parse(&bytes).unwrap_err();
            match bit / 64 {
                0 => assert_eq!(problem, StateProblem::NotAState),
                _ if bit < 96 => assert!(matches!(problem, StateProblem::Version { .. })),
                _ => assert!(matches!(problem, StateProblem::Damaged { .. }), "{bit}"),
            }
        }
    }

    #[test]
    fn what_no_program_writes_is_refused_under_a_right_checksum_too() {
        let damaged = |change: fn(&mut [u8; HEADER_BYTES])| {
            let problem = parse_changed(change).unwrap_err();
            assert!(matches!(problem, StateProblem::Damaged { .. }), "{problem}");
        };
        damaged(|bytes| bytes[12] = 4);
        damaged(|bytes| bytes[96] = 2);
        damaged(|bytes| bytes[100] = 2);
        // More tokens read than there are.
        damaged(|bytes| bytes[48] = 10);
        // Sizes whose sum or product is beyond 64 bits.
        for at in [56, 72, 80, 88] {
            let huge = |bytes: &mut [u8; HEADER_BYTES]| bytes[at..at + 8].fill(0xff);
            assert!(matches!(parse_changed(huge), Err(StateProblem::Damaged { .. })), "{at}");
        }
        assert_eq!(
            parse_changed(|bytes| bytes[8] = 2),
            Err(StateProblem::Version { found: 2, known: VERSION })
        );
        assert!(parse_changed(|_| ()).is_ok());
    }
}
