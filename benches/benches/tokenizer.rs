//! Encoding and decoding, beside the `tiktoken-rs` crate with the same ranks and the same pattern.
//!
//! `cargo bench -p kimi-benches --bench tokenizer` (add `-- --test` for each bench once). Before the benches, the two
//! encoders run in turn, round after round, so that drift of the machine hits both alike; their medians are printed.
//! With the released vocabulary where it is present, else with that of the demo model.

use std::collections::HashMap;
use std::fs;
use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, Throughput};
use kimi_text::{Flagged, SPLIT_PATTERN, Specials, TextStream, TokenId, Tokenizer};
use tiktoken_rs::CoreBPE;

/// Characters of a text: fewer than 400,000, after which a Kimi tokenizer cuts and its peer does not.
const TEXT_CHARS: usize = 300_000;

/// Scripts, digits, code and emoji in the shares of a chat between people who write all of these.
const MIXED: &str = "\
Der Zug nach Łódź fährt um 18:05 ab; I'll wait, don't worry — c'est déjà l'été.\n\
今天我们把模型的权重从磁盘读进内存，一共 1,560 个文件，每个大约 1.5 GB。速度不错！\n\
この文章は日本語で、カタカナとひらがなと漢字が混ざっています。\n\
Завтра утром мы проверим результаты и напишем короткий отчёт.\n\
سنقرأ الملف غدًا ثم نكتب التقرير. 오늘은 날씨가 좋아서 산책을 했습니다. कल सुबह हम फिर मिलेंगे।\n\
fn median(xs: &mut [f64]) -> f64 {\n    xs.sort_by(f64::total_cmp);\n    xs[xs.len() / 2]\n}\n\
\t\"latency_ms\": [12.5, 13.0, 0x7f],  // 👩‍🚀🚀 naïve ≈ 3½ ≤ Ⅷ\r\n\r\n";

struct Subject {
    vocabulary: &'static str,
    tokenizer: Tokenizer,
    peer: CoreBPE,
    texts: [(&'static str, String); 2],
}

impl Subject {
    fn new() -> Self {
        let shared = kimi_testing::shared_data("tokenizer/tiktoken.model");
        let (vocabulary, model) = match shared {
            Some(model) => ("released", model),
            None => ("demo", kimi_testing::demo_model().join("tiktoken.model")),
        };
        let model = fs::read(model).expect("the vocabulary can be read");
        let tokenizer = Tokenizer::from_bytes(&model, None).expect("the vocabulary is one");
        let ranks = (0..tokenizer.vocabulary().len() as u32)
            .map(|id| (tokenizer.vocabulary().token(TokenId(id)).expect("ids are ranks").to_vec(), id));
        let peer =
            CoreBPE::new(ranks.collect(), HashMap::<String, u32>::new().into_iter().collect(), SPLIT_PATTERN)
                .expect("the pattern is one that the peer takes");
        let english = kimi_testing::shared_data("demo/eval.txt").map_or_else(
            || include_str!("../../kimi-text/README.md").to_string(),
            |text| fs::read_to_string(text).expect("the text can be read"),
        );
        let texts = [("english", english), ("mixed", MIXED.to_string())]
            .map(|(name, text)| (name, text.chars().cycle().take(TEXT_CHARS).collect()));
        Self { vocabulary, tokenizer, peer, texts }
    }

    fn check(&self) {
        for (name, text) in &self.texts {
            let ours: Vec<u32> =
                self.tokenizer.encode(text, Specials::AsText).iter().map(|id| id.0).collect();
            assert_eq!(ours, self.peer.encode_ordinary(text), "{name}: the ids agree");
        }
    }

    /// Both encoders in turn; medians.
    fn compare(&self, rounds: usize) {
        println!("encode, {} vocabulary, one thread, {rounds} rounds in turn, medians", self.vocabulary);
        println!("{:10} {:>9} {:>12} {:>12} {:>8}", "text", "bytes", "kimi-text", "tiktoken-rs", "ratio");
        for (name, text) in &self.texts {
            let mut seconds = [Vec::new(), Vec::new()];
            for _ in 0..rounds {
                let start = Instant::now();
                black_box(self.tokenizer.encode(black_box(text), Specials::AsText));
                seconds[0].push(start.elapsed().as_secs_f64());
                let start = Instant::now();
                black_box(self.peer.encode_ordinary(black_box(text)));
                seconds[1].push(start.elapsed().as_secs_f64());
            }
            let [ours, peer] = seconds.map(|mut seconds| {
                seconds.sort_by(f64::total_cmp);
                text.len() as f64 / seconds[rounds / 2] / 1e6
            });
            println!("{name:10} {:9} {ours:7.1} MB/s {peer:7.1} MB/s {:7.2}x", text.len(), ours / peer);
        }
    }

    fn bench(&self, criterion: &mut Criterion) {
        let mut group = criterion.benchmark_group(format!("encode/{}", self.vocabulary));
        for (name, text) in &self.texts {
            group.throughput(Throughput::Bytes(text.len() as u64));
            group.bench_function(format!("{name}/kimi-text"), |bencher| {
                bencher.iter(|| self.tokenizer.encode(black_box(text), Specials::AsText));
            });
            group.bench_function(format!("{name}/kimi-text-markup"), |bencher| {
                bencher.iter(|| self.tokenizer.encode(black_box(text), Specials::Parse));
            });
            group.bench_function(format!("{name}/tiktoken-rs"), |bencher| {
                bencher.iter(|| self.peer.encode_ordinary(black_box(text)));
            });
        }
        // Runs that bring the cuts and the heap into play.
        for (name, unit) in [("spaces", " "), ("letters", "a"), ("newlines", "\n"), ("capitals", "Ab")] {
            let text = unit.repeat(1_000_000 / unit.len());
            group.throughput(Throughput::Bytes(text.len() as u64));
            group.bench_function(format!("{name}/kimi-text"), |bencher| {
                bencher.iter(|| self.tokenizer.encode(black_box(&text), Specials::AsText));
            });
        }
        group.finish();

        let mut group = criterion.benchmark_group(format!("decode/{}", self.vocabulary));
        for (name, text) in &self.texts {
            let ids = self.tokenizer.encode(text, Specials::AsText);
            group.throughput(Throughput::Bytes(text.len() as u64));
            group.bench_function(format!("{name}/whole"), |bencher| {
                bencher.iter(|| self.tokenizer.decode_lossy(black_box(&ids), Flagged::Show));
            });
            group.bench_function(format!("{name}/stream"), |bencher| {
                bencher.iter(|| {
                    let mut stream = TextStream::new(&self.tokenizer, Flagged::Show);
                    ids.iter().map(|&id| stream.push(id).map_or(0, str::len)).sum::<usize>()
                });
            });
        }
        group.finish();
    }
}

fn main() {
    let subject = Subject::new();
    subject.check();
    if !std::env::args().any(|argument| argument == "--test" || argument == "--list") {
        subject.compare(51);
    }
    let mut criterion = Criterion::default().configure_from_args();
    subject.bench(&mut criterion);
    criterion.final_summary();
}
