//! Matrix products: `matmul/ENCODING/ISA/ROWSxCOLS/COLUMNS/THREADS`.
//!
//! One column reports the bytes of weights read, to hold against memory bandwidth; several columns report
//! multiply-adds, to hold against the processor's peak (the `peak` bench of this file, per thread). The small shape
//! stays in the cache, the large one does not fit it.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kimi_benches::Stored;
use kimi_kernels::{IntegerBuffers, Kernels, Scratch, Threads, reference};
use kimi_quant::Encoding;
use kimi_testing::Seeded;

fn matmul(criterion: &mut Criterion) {
    let kernels = Kernels::detect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut group = criterion.benchmark_group("matmul");
    group.sample_size(10);
    let integers = INTEGERS.map(|name| name.parse().expect("an encoding"));
    let plain = [Encoding::F32, Encoding::Bf16, Encoding::Bf12, Encoding::Mxfp4];
    for encoding in plain.into_iter().chain(integers) {
        for [rows, cols] in [[240, 3584], [12288, 7168]] {
            let stored = Stored::new(encoding, [rows, cols]);
            for count in [1, 4, 8, 64, 512] {
                // A large product with many columns takes minutes and says nothing new.
                if rows * count > 12288 * 8 && rows > 240 {
                    continue;
                }
                let x = Seeded::new(2).normals(cols * count, 1.0);
                let mut y = vec![0.0; rows * count];
                for threads in [1, cores] {
                    let threads = Threads::new(threads).expect("threads");
                    let scratch = Scratch::new(&threads, kernels.matmul_scratch(cols, count));
                    let mut buffer = vec![0.0; kernels.packed_len(cols, count)];
                    let columns = kernels.columns(&threads, &x, cols, &mut buffer).expect("fits");
                    group.throughput(throughput(&stored, count));
                    let shape = format!("{rows}x{cols}/{count}/{}", threads.count());
                    group.bench_function(
                        BenchmarkId::new(format!("{encoding}/{}", kernels.isa()), shape),
                        |b| {
                            b.iter(|| {
                                threads.run(|| {
                                    kernels.matmul(&threads, &scratch, stored.view(), columns, &mut y)
                                })
                            });
                        },
                    );
                }
            }
        }
    }
    group.finish();
}

/// Bytes of weights for one column, multiply-adds for more.
fn throughput(stored: &Stored, count: usize) -> Throughput {
    let view = stored.view();
    match count {
        1 => Throughput::Bytes(stored.bytes()),
        _ => Throughput::Elements((view.rows() * view.cols() * count) as u64),
    }
}

/// Encodings with a fast tier.
const INTEGERS: [&str; 7] = ["i8:g128", "i6:g64", "i4:g32", "i4:g32:cb", "i3:g32", "i2:g32", "mxfp4:bands"];

/// The fast tier: int8 activations, quantized beforehand.
fn integer(criterion: &mut Criterion) {
    let kernels = Kernels::detect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut group = criterion.benchmark_group("integer");
    group.sample_size(10);
    for name in INTEGERS {
        let encoding: Encoding = name.parse().expect("an encoding");
        for [rows, cols] in [[240, 3584], [12288, 7168]] {
            let stored = Stored::new(encoding, [rows, cols]);
            for count in [1, 4, 512] {
                if rows * count > 12288 * 8 && rows > 240 {
                    continue;
                }
                let x = Seeded::new(2).normals(cols * count, 1.0);
                let mut y = vec![0.0; rows * count];
                for threads in [1, cores] {
                    let threads = Threads::new(threads).expect("threads");
                    let mut buffers = IntegerBuffers::default();
                    let size = stored.view().integer_group().expect("small integers");
                    let columns = buffers.quantize(&threads, &x, cols, size).expect("fits");
                    group.throughput(throughput(&stored, count));
                    let shape = format!("{rows}x{cols}/{count}/{}", threads.count());
                    group.bench_function(
                        BenchmarkId::new(format!("{encoding}/{}", kernels.isa()), shape),
                        |b| {
                            b.iter(|| {
                                threads
                                    .run(|| kernels.matmul_integer(&threads, stored.view(), columns, &mut y))
                            });
                        },
                    );
                }
            }
        }
    }
    group.finish();
}

/// The scalar definition, to show what dispatch is worth.
fn scalar(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reference");
    group.sample_size(10);
    let (rows, cols) = (240, 3584);
    let x = Seeded::new(2).normals(cols, 1.0);
    let mut y = vec![0.0; rows];
    for encoding in [Encoding::Bf16, Encoding::Mxfp4] {
        let stored = Stored::new(encoding, [rows, cols]);
        group.throughput(Throughput::Bytes(stored.bytes()));
        group.bench_function(format!("gemv/{encoding}/{rows}x{cols}"), |b| {
            b.iter(|| reference::gemv(stored.view(), black_box(&x), &mut y));
        });
    }
    group.finish();
}

criterion_group!(benches, matmul, integer, scalar);
criterion_main!(benches);
