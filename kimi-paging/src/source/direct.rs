//! Reads past the page cache.

use std::cell::RefCell;
use std::fs::File;
use std::io;

use super::MAX_ALIGNMENT;
use super::file::fill as fill_aligned;
use crate::PAGE_BYTES;

/// Memory of each thread for reads that have no place for whole blocks.
const BOUNCE_BYTES: usize = 256 << 10;

const _: () = assert!(BOUNCE_BYTES.is_multiple_of(MAX_ALIGNMENT));

/// Why a file is read through the page cache although it was to be read past it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectProblem {
    /// This system has no direct reads, or none that this crate knows.
    #[error("direct reads are not available on this system")]
    System,

    /// The file system has none for this file.
    #[error("the file system has no direct reads for this file")]
    File,

    /// They ask for more alignment than readers keep.
    #[error("direct reads must be aligned to {alignment} bytes, more than {limit}")]
    Alignment {
        /// The alignment.
        alignment: usize,
        /// The most that readers keep.
        limit: usize,
    },

    /// The system refused to switch the file to direct reads, or to describe them.
    #[error("direct reads were refused")]
    Refused(#[source] io::Error),

    /// The file was switched to direct reads, but one of them failed.
    #[error("a direct read failed on trial")]
    Probe(#[source] io::Error),

    /// A direct read returned fewer bytes than the file has.
    #[error("a direct read on trial returned {found} bytes instead of {expected}")]
    ShortProbe {
        /// The bytes that were to come.
        expected: usize,
        /// The bytes that came.
        found: usize,
    },
}

/// Switches a file to direct reads, and returns their alignment.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn enable(file: &File, len: u64) -> Result<usize, DirectProblem> {
    use super::file::read_some;
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    let refused = |error: rustix::io::Errno| DirectProblem::Refused(error.into());
    let alignment = alignment(file)?;
    let flags = fcntl_getfl(file).map_err(refused)?;
    fcntl_setfl(file, flags | OFlags::DIRECT).map_err(refused)?;
    let probed = probe(alignment, len, |buf, at| read_some(file, buf, at));
    if probed.is_err() {
        // Taking a flag back that was just set does not fail; if it did, reads would say so.
        let _ = fcntl_setfl(file, flags);
    }
    probed.map(|()| alignment)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn enable(_file: &File, _len: u64) -> Result<usize, DirectProblem> {
    Err(DirectProblem::System)
}

/// What the system asks of direct reads; the block size of the file system where the kernel is older than that question (6.1).
#[cfg(any(target_os = "linux", target_os = "android"))]
fn alignment(file: &File) -> Result<usize, DirectProblem> {
    use rustix::fs::{AtFlags, StatxFlags, statx};

    let wanted = StatxFlags::DIOALIGN | StatxFlags::BASIC_STATS;
    let told = match statx(file, c"", AtFlags::EMPTY_PATH, wanted) {
        Ok(told) => told,
        Err(error) => return Err(DirectProblem::Refused(error.into())),
    };
    if StatxFlags::from_bits_retain(told.stx_mask).contains(StatxFlags::DIOALIGN) {
        check_alignment(told.stx_dio_offset_align, told.stx_dio_mem_align)
    } else {
        check_alignment(told.stx_blksize, told.stx_blksize.min(PAGE_BYTES as u32))
    }
}

/// The alignment for both offsets and memory. It is never below a page: that costs nothing for reads of megabytes, and some
/// file systems want more than they say.
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), allow(dead_code, reason = "Linux only"))]
fn check_alignment(offsets: u32, memory: u32) -> Result<usize, DirectProblem> {
    let (offsets, memory) = (offsets as usize, memory as usize);
    if offsets == 0 || memory == 0 {
        return Err(DirectProblem::File);
    }
    // Buffers are aligned to a page and not beyond.
    for (alignment, limit) in [(offsets, MAX_ALIGNMENT), (memory, PAGE_BYTES)] {
        if !alignment.is_power_of_two() || alignment > limit {
            return Err(DirectProblem::Alignment { alignment, limit });
        }
    }
    Ok(offsets.max(PAGE_BYTES))
}

/// Reads the first and the last block: some file systems accept the flag and refuse the reads.
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), allow(dead_code, reason = "Linux only"))]
fn probe(
    align: usize,
    len: u64,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> Result<(), DirectProblem> {
    let last = len.saturating_sub(1) / align as u64 * align as u64;
    with_bounce(|bounce| {
        for offset in [0, last] {
            let expected = (len - offset).min(align as u64) as usize;
            let found = fill_aligned(offset, &mut bounce[..align], expected, align, &mut read)
                .map_err(DirectProblem::Probe)?;
            if found < expected {
                return Err(DirectProblem::ShortProbe { expected, found });
            }
        }
        Ok(())
    })
}

/// Fills `buf`, which may lie and begin anywhere, by aligned calls of `read`; returns how many bytes there were.
///
/// Whole blocks go straight to where they belong if that is aligned like the file, everything else goes through a copy.
pub(super) fn fill(
    offset: u64,
    buf: &mut [u8],
    align: usize,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        let at = offset + done as u64;
        let rest = &mut buf[done..];
        let skip = (at % align as u64) as usize;
        let whole = rest.len() / align * align;
        let (wanted, found) = if skip == 0 && whole > 0 && is_aligned(rest, align) {
            (whole, fill_aligned(at, &mut rest[..whole], whole, align, &mut read)?)
        } else {
            let wanted = rest.len().min(BOUNCE_BYTES - skip);
            let found = with_bounce(|bounce| {
                let span = (skip + wanted).next_multiple_of(align);
                let block = at - skip as u64;
                let found = fill_aligned(block, &mut bounce[..span], skip + wanted, align, &mut read)?;
                let found = found.saturating_sub(skip).min(wanted);
                rest[..found].copy_from_slice(&bounce[skip..skip + found]);
                Ok::<_, io::Error>(found)
            })?;
            (wanted, found)
        };
        done += found;
        if found < wanted {
            break;
        }
    }
    Ok(done)
}

/// True if blocks can be read to where `buf` begins.
fn is_aligned(buf: &[u8], align: usize) -> bool {
    buf.as_ptr().addr().is_multiple_of(align.min(PAGE_BYTES))
}

thread_local! {
    static BOUNCE: RefCell<Vec<u8>> = RefCell::new(vec![0; BOUNCE_BYTES + PAGE_BYTES - 1]);
}

/// Allocates what reads of this thread will need, so that none of them does.
pub(crate) fn prepare_thread() {
    BOUNCE.with_borrow(|_| {});
}

/// Lends the memory of this thread, page-aligned, [`BOUNCE_BYTES`] long.
fn with_bounce<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    BOUNCE.with_borrow_mut(|bytes| {
        let start = bytes.as_ptr().addr().next_multiple_of(PAGE_BYTES) - bytes.as_ptr().addr();
        use_it(&mut bytes[start..start + BOUNCE_BYTES])
    })
}

#[cfg(test)]
mod tests {
    use kimi_testing::Seeded;
    use proptest::prelude::*;

    use super::*;

    /// A file that refuses what is not aligned, and returns at most `most` bytes at once.
    fn strict(
        bytes: &[u8],
        align: usize,
        most: usize,
    ) -> impl FnMut(&mut [u8], u64) -> io::Result<usize> + '_ {
        move |buf, offset| {
            let aligned =
                is_aligned(buf, align) && buf.len().is_multiple_of(align) && offset % align as u64 == 0;
            if !aligned {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let rest = bytes.get(offset as usize..).unwrap_or_default();
            let count = rest.len().min(buf.len()).min(most);
            buf[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        }
    }

    proptest! {
        #[test]
        fn any_range_is_read_by_whole_blocks(
            len in 0..700_000usize, from in 0..700_000usize, count in 0..700_000usize, shift in 0..5000usize,
            align in prop_oneof![Just(512usize), Just(4096), Just(65_536)], most in 65_536..200_000usize,
        ) {
            let bytes = Seeded::new(1).bytes(len);
            let mut memory = vec![0; count + 2 * 5000];
            // Often aligned like the file, sometimes not.
            let base = memory.as_ptr().addr() % PAGE_BYTES;
            let like_the_file = (PAGE_BYTES - base + from % PAGE_BYTES) % PAGE_BYTES;
            let shift = if shift % 2 == 0 { like_the_file } else { shift };
            let buf = &mut memory[shift..shift + count];
            let found = fill(from as u64, buf, align, strict(&bytes, align, most)).unwrap();
            let expected = &bytes[from.min(len)..(from + count).min(len)];
            prop_assert!(&buf[..found] == expected);
        }
    }

    #[test]
    fn blocks_go_straight_to_where_they_belong() {
        let bytes = Seeded::new(2).bytes(100_000);
        let mut memory = vec![0; 100_000 + PAGE_BYTES];
        let start = PAGE_BYTES - memory.as_ptr().addr() % PAGE_BYTES;
        let buf = &mut memory[start..start + 90_000];
        let range = buf.as_ptr_range();
        let (mut straight, mut copied) = (0, 0);
        let mut read = strict(&bytes, 4096, usize::MAX);
        let found = fill(8192, buf, 4096, |part, at| {
            if range.contains(&part.as_ptr()) {
                straight += part.len()
            } else {
                copied += part.len()
            }
            read(part, at)
        });
        assert_eq!((found.unwrap(), straight, copied), (90_000, 21 * 4096, 4096));
        assert!(memory[start..start + 90_000] == bytes[8192..98_192]);
    }

    #[test]
    fn trials_find_what_the_flag_hides() {
        let bytes = Seeded::new(3).bytes(10_000);
        let probe = |len, read: &mut dyn FnMut(&mut [u8], u64) -> io::Result<usize>| probe(4096, len, read);
        assert!(probe(10_000, &mut strict(&bytes, 4096, usize::MAX)).is_ok());
        assert!(probe(0, &mut strict(&[], 4096, usize::MAX)).is_ok());
        assert!(probe(8192, &mut strict(&bytes[..8192], 4096, 700)).is_err(), "blocks come whole");
        let refused = probe(10_000, &mut |_, _| Err(io::ErrorKind::InvalidInput.into()));
        assert!(
            matches!(refused, Err(DirectProblem::Probe(error)) if error.kind() == io::ErrorKind::InvalidInput)
        );
        // Only the tail is refused.
        let mut whole = strict(&bytes, 4096, usize::MAX);
        let tail = probe(10_000, &mut |buf, at| {
            if at > 0 { Err(io::ErrorKind::Unsupported.into()) } else { whole(buf, at) }
        });
        assert!(matches!(tail, Err(DirectProblem::Probe(_))));
        let short = probe(10_000, &mut |_, at| Ok(if at == 0 { 4096 } else { 0 }));
        assert!(matches!(short, Err(DirectProblem::ShortProbe { expected: 1808, found: 0 })));
    }

    #[test]
    fn alignments_are_whole_pages_within_what_readers_keep() {
        assert!(matches!(check_alignment(512, 4), Ok(4096)));
        assert!(matches!(check_alignment(4096, 512), Ok(4096)));
        assert!(matches!(check_alignment(16_384, 4096), Ok(16_384)));
        assert!(matches!(check_alignment(0, 0), Err(DirectProblem::File)));
        assert!(matches!(check_alignment(1 << 20, 512), Err(DirectProblem::Alignment { limit: 65_536, .. })));
        assert!(matches!(check_alignment(4096, 8192), Err(DirectProblem::Alignment { limit: 4096, .. })));
        assert!(matches!(check_alignment(1000, 512), Err(DirectProblem::Alignment { alignment: 1000, .. })));
    }
}
