//! Processor, threads and memory.

use kimi_kernels::{Isa, Kernels};
use kimi_paging::{MemoryLimit, memory_limit};

use super::{Finding, Processor, size};
use crate::EngineOptions;

/// About what the full model runs in at 4096 tokens of context (`docs/paging.md`).
const K3_FLOOR: u64 = 900_000_000;

pub(super) fn examine(options: &EngineOptions) -> Vec<Finding> {
    let processor = Processor::here();
    let isa = Kernels::detect().isa();
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    vec![instructions(&processor, isa), threads(&processor, options, usable), memory(&memory_limit())]
}

fn instructions(processor: &Processor, isa: Isa) -> Finding {
    let name = processor.name.as_deref().unwrap_or("unnamed");
    match isa {
        Isa::Scalar => Finding::warning(
            "processor",
            format!("{name}: neither AVX2 with FMA nor NEON"),
            "models run with the scalar kernels, many times slower; use another machine for more than a trial",
        ),
        isa => Finding::good("processor", format!("{name}, {isa} kernels")),
    }
}

/// `usable` counts what affinity and CPU quota leave.
fn threads(processor: &Processor, options: &EngineOptions, usable: usize) -> Finding {
    let online = processor.online.unwrap_or(usable);
    let used = options.threads.unwrap_or(usable);
    let found = format!("{used} of {online} logical processors");
    if used > usable {
        return Finding::warning(
            "threads",
            format!("{found}, of which this process may use {usable}"),
            format!("threads that share a processor wait for each other: --threads {usable}"),
        );
    }
    if usable < online {
        let cause = match processor.allowed {
            Some(allowed) if allowed < online => "affinity mask",
            _ => "CPU quota of the control group",
        };
        return Finding::warning(
            "threads",
            format!("{found}, held back by the {cause}"),
            "lift the limit if the machine has nothing else to do",
        );
    }
    Finding::good("threads", found)
}

fn memory(limit: &MemoryLimit) -> Finding {
    let Some(bytes) = limit.bytes() else {
        return Finding::warning(
            "memory",
            "the system does not tell how much there is",
            "say how much a model may take: --ram 8GB",
        );
    };
    let source = match &limit.group {
        Some((group, path)) if *group == bytes => format!("{} by {}", size(bytes), path.display()),
        _ => size(bytes),
    };
    if bytes < K3_FLOOR {
        return Finding::warning(
            "memory",
            format!("{source}: below the {} that the full K3 runs in", size(K3_FLOOR)),
            "smaller models may fit: `kimi-cli plan` tells",
        );
    }
    Finding::good("memory", source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_processor_without_vectors_is_warned_of() {
        let processor = Processor { name: Some("Old".to_owned()), ..Processor::default() };
        assert_eq!(instructions(&processor, Isa::Scalar).verdict, Verdict::Warning);
        let found = instructions(&processor, Isa::Avx2);
        assert_eq!((found.verdict, found.found.as_str()), (Verdict::Good, "Old, avx2 kernels"));
    }

    #[test]
    fn what_holds_threads_back_is_named() {
        let processor = |online, allowed| Processor {
            online: Some(online),
            allowed: Some(allowed),
            ..Processor::default()
        };
        let mut options = EngineOptions::default();
        let found = |processor: &Processor, options: &EngineOptions, usable| {
            let found = threads(processor, options, usable);
            (found.verdict, found.found)
        };
        assert_eq!(found(&processor(8, 8), &options, 8).0, Verdict::Good);
        let (verdict, text) = found(&processor(8, 2), &options, 2);
        assert!(verdict == Verdict::Warning && text.contains("affinity"), "{text}");
        let (verdict, text) = found(&processor(8, 8), &options, 2);
        assert!(verdict == Verdict::Warning && text.contains("quota"), "{text}");
        options.threads = Some(16);
        let (verdict, text) = found(&processor(8, 8), &options, 8);
        assert!(verdict == Verdict::Warning && text.contains("may use 8"), "{text}");
    }

    #[test]
    fn little_or_unknown_memory_is_warned_of() {
        let limit = |physical, group: Option<u64>| {
            let mut limit = MemoryLimit::default();
            limit.physical_bytes = physical;
            limit.group = group.map(|bytes| (bytes, "/group/memory.max".into()));
            memory(&limit)
        };
        assert_eq!(limit(None, None).verdict, Verdict::Warning);
        assert_eq!(limit(Some(8 << 30), None).verdict, Verdict::Good);
        let found = limit(Some(8 << 30), Some(1 << 29));
        assert!(found.verdict == Verdict::Warning && found.found.contains("memory.max"), "{found:?}");
    }
}
