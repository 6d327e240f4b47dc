//! Encoding and decoding speed of the number formats, in weights per second on one core.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kimi_quant::quantize::{Method, Quantizer};
use kimi_quant::{Bf12View, Bf16, IntFormat, IntView, activations, bf12, mxfp4};
use kimi_testing::Seeded;

const SHAPE: [usize; 2] = [64, 7168];
const WEIGHTS: usize = SHAPE[0] * SHAPE[1];

fn encode(criterion: &mut Criterion) {
    let weights = Seeded::new(1).normals(WEIGHTS, 0.02);
    let bf16: Vec<u8> = weights.iter().flat_map(|&weight| Bf16::from_f32(weight).0.to_le_bytes()).collect();
    let mut group = criterion.benchmark_group("encode");
    group.sample_size(10).throughput(Throughput::Elements(WEIGHTS as u64));
    for name in ["i8:g128", "i6:g64", "i4:g32", "i4:g32:zp", "i4:g32:cb", "i3:g32", "i2:g32"] {
        let format: IntFormat = name.parse().expect("a format");
        for (method, label) in [(Method::AbsMax, "absmax"), (Method::Search, "search"), (Method::Hqq, "hqq")]
        {
            if method == Method::Hqq && !name.ends_with("zp") {
                continue;
            }
            let quantizer = Quantizer::new(format).method(method);
            group.bench_function(format!("{name}/{label}"), |b| {
                b.iter(|| quantizer.quantize(SHAPE, black_box(&weights)).expect("finite"));
            });
        }
    }
    group
        .bench_function("mxfp4", |b| b.iter(|| mxfp4::quantize(SHAPE, black_box(&weights)).expect("finite")));
    group.bench_function("bf12", |b| b.iter(|| bf12::encode(SHAPE, black_box(&bf16)).expect("fits")));
    group.finish();
}

fn decode(criterion: &mut Criterion) {
    let weights = Seeded::new(1).normals(WEIGHTS, 0.02);
    let bf16: Vec<u8> = weights.iter().flat_map(|&weight| Bf16::from_f32(weight).0.to_le_bytes()).collect();
    let mut group = criterion.benchmark_group("decode");
    group.sample_size(10).throughput(Throughput::Elements(WEIGHTS as u64));
    let mut row = vec![0.0; SHAPE[1]];
    let coded = bf12::encode(SHAPE, &bf16).expect("fits");
    let view = Bf12View::new(SHAPE, &coded).expect("just made");
    group.bench_function("bf12", |b| {
        b.iter(|| (0..SHAPE[0]).for_each(|r| view.decode_row(r, black_box(&mut row))))
    });
    let format: IntFormat = "i4:g32".parse().expect("a format");
    let bytes = Quantizer::new(format).quantize(SHAPE, &weights).expect("finite");
    let view = IntView::new(SHAPE, format, &bytes).expect("just made");
    group.bench_function("i4:g32", |b| {
        b.iter(|| (0..SHAPE[0]).for_each(|r| view.decode_row(r, black_box(&mut row))))
    });
    let (mut codes, mut scales) = (vec![0; SHAPE[1]], vec![0.0; SHAPE[1] / 32]);
    group.throughput(Throughput::Elements(SHAPE[1] as u64));
    group.bench_function("activations to int8", |b| {
        b.iter(|| activations::quantize_column(black_box(&weights[..SHAPE[1]]), 32, &mut codes, &mut scales));
    });
    group.finish();
}

criterion_group!(benches, encode, decode);
criterion_main!(benches);
