//! The experiment behind the order of summation: 8, 16 or 32 virtual lanes along K?
//!
//! Not a regression bench: it is kept so that the table in `docs/kernels.md` can be made again. Each variant is
//! an AVX2 kernel written for its lane count. All variants run in turn, round after round, in one process; the
//! figures are medians over the rounds, so drift of the machine hits all of them alike.
//!
//! `cargo bench -p kimi-benches --bench lanes` (add `-- --test` for one short round).

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls of target_feature functions after detection")
)]

#[cfg(target_arch = "x86_64")]
fn main() {
    if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
        println!("skipped: this processor has no AVX2 with FMA");
        return;
    }
    avx2::main(std::env::args().any(|argument| argument == "--test"));
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("skipped: the experiment is written for AVX2");
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;
    use std::hint::black_box;
    use std::time::Instant;

    use bytemuck::must_cast;
    use kimi_testing::Seeded;

    /// Eight float32 values: one AVX register, one step of eight virtual lanes.
    type Vec8 = [f32; 8];

    #[target_feature(enable = "avx2,fma")]
    fn load(x: &Vec8) -> __m256 {
        must_cast(*x)
    }

    #[target_feature(enable = "avx2,fma")]
    fn bf16(w: &[u8; 16]) -> __m256 {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(must_cast::<_, __m128i>(*w))))
    }

    /// The fold of `VECTORS` accumulators and then of eight lanes, halves onto halves.
    #[target_feature(enable = "avx2,fma")]
    fn fold<const VECTORS: usize>(mut lanes: [__m256; VECTORS]) -> f32 {
        let mut width = VECTORS;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                lanes[i] = _mm256_add_ps(lanes[i], lanes[i + width]);
            }
        }
        let half = _mm_add_ps(_mm256_castps256_ps128(lanes[0]), _mm256_extractf128_ps::<1>(lanes[0]));
        let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
        _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
    }

    /// y = W x for row-major BF16, `ROWS` rows at a time, `VECTORS` x 8 virtual lanes.
    #[target_feature(enable = "avx2,fma")]
    fn gemv_bf16<const VECTORS: usize, const ROWS: usize>(w: &[u8], x: &[f32], y: &mut [f32]) {
        let row_bytes = x.len() * 2;
        let x = x.as_chunks::<8>().0;
        for (rows, y) in w.chunks_exact(row_bytes * ROWS).zip(y.chunks_exact_mut(ROWS)) {
            let rows: [&[[u8; 16]]; ROWS] = std::array::from_fn(|r| {
                &rows[r * row_bytes..(r + 1) * row_bytes].as_chunks::<16>().0[..x.len()]
            });
            let mut lanes = [[_mm256_setzero_ps(); VECTORS]; ROWS];
            for step in 0..x.len() / VECTORS {
                for v in 0..VECTORS {
                    let i = step * VECTORS + v;
                    let x = load(&x[i]);
                    for r in 0..ROWS {
                        lanes[r][v] = _mm256_fmadd_ps(bf16(&rows[r][i]), x, lanes[r][v]);
                    }
                }
            }
            for r in 0..ROWS {
                y[r] = fold(lanes[r]);
            }
        }
    }

    /// y = W x for 4-bit codes in bands of eight rows, a 32-byte word holding eight columns of each row; one
    /// scale per row and 32 columns, eight scales together. K along the lanes: a row's eight columns are one
    /// broadcast 32-bit word.
    #[target_feature(enable = "avx2,fma")]
    fn gemv_i4_k<const VECTORS: usize, const ROWS: usize>(
        codes: &[u8],
        scales: &[f32],
        x: &[f32],
        y: &mut [f32],
    ) {
        let words = x.len() / 8;
        let x = x.as_chunks::<8>().0;
        let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        let (mask, zero_point) = (_mm256_set1_epi32(15), _mm256_set1_epi32(8));
        let bands = codes.as_chunks::<32>().0.chunks_exact(words);
        for ((band, scales), y) in
            bands.zip(scales.as_chunks::<8>().0.chunks_exact(words / 4)).zip(y.chunks_exact_mut(8))
        {
            for r0 in (0..8).step_by(ROWS) {
                let mut lanes = [[_mm256_setzero_ps(); VECTORS]; ROWS];
                for (group, scales) in scales.iter().enumerate() {
                    for half in 0..4 / VECTORS {
                        for v in 0..VECTORS {
                            let i = group * 4 + half * VECTORS + v;
                            let x = load(&x[i]);
                            let word: [i32; 8] = must_cast(band[i]);
                            for r in 0..ROWS {
                                let code = _mm256_srlv_epi32(_mm256_set1_epi32(word[r0 + r]), shifts);
                                let code = _mm256_sub_epi32(_mm256_and_si256(code, mask), zero_point);
                                let w =
                                    _mm256_mul_ps(_mm256_cvtepi32_ps(code), _mm256_set1_ps(scales[r0 + r]));
                                lanes[r][v] = _mm256_fmadd_ps(w, x, lanes[r][v]);
                            }
                        }
                    }
                }
                for r in 0..ROWS {
                    y[r0 + r] = fold(lanes[r]);
                }
            }
        }
    }

    /// The same product with rows along the lanes: `LANES` accumulators of eight rows each.
    #[target_feature(enable = "avx2,fma")]
    fn gemv_i4_rows<const LANES: usize>(codes: &[u8], scales: &[f32], x: &[f32], y: &mut [f32]) {
        let words = x.len() / 8;
        let x = x.as_chunks::<8>().0;
        let (mask, zero_point) = (_mm256_set1_epi32(15), _mm256_set1_epi32(8));
        let bands = codes.as_chunks::<32>().0.chunks_exact(words);
        for ((band, scales), y) in
            bands.zip(scales.as_chunks::<8>().0.chunks_exact(words / 4)).zip(y.as_chunks_mut::<8>().0)
        {
            let mut lanes = [_mm256_setzero_ps(); LANES];
            for (group, scales) in scales.iter().enumerate() {
                let scales = load(scales);
                for step in 0..32 / LANES {
                    for part in 0..LANES / 8 {
                        let i = group * 4 + step * (LANES / 8) + part;
                        let mut word = must_cast::<_, __m256i>(band[i]);
                        for k in 0..8 {
                            let code = _mm256_sub_epi32(_mm256_and_si256(word, mask), zero_point);
                            word = _mm256_srli_epi32::<4>(word);
                            let w = _mm256_mul_ps(_mm256_cvtepi32_ps(code), scales);
                            let lane = part * 8 + k;
                            lanes[lane] = _mm256_fmadd_ps(w, _mm256_set1_ps(x[i][k]), lanes[lane]);
                        }
                    }
                }
            }
            let mut width = LANES;
            while width > 1 {
                width /= 2;
                for i in 0..width {
                    lanes[i] = _mm256_add_ps(lanes[i], lanes[i + width]);
                }
            }
            *y = must_cast(lanes[0]);
        }
    }

    /// Columns of K that a panel of decoded weights covers.
    const K_BLOCK: usize = 1024;
    /// Rows of a panel.
    const PANEL_ROWS: usize = 24;

    /// One register block: `ROWS` x `COLS` outputs with `VECTORS` x 8 lanes each. Weights and activations lie
    /// packed in the order of use, so that the loop walks two streams.
    #[target_feature(enable = "avx2,fma")]
    fn block<const VECTORS: usize, const ROWS: usize, const COLS: usize>(
        w: &[[[Vec8; ROWS]; VECTORS]],
        x: &[[[Vec8; COLS]; VECTORS]],
        sums: &mut [[[Vec8; VECTORS]; COLS]; ROWS],
    ) {
        let mut lanes = [[[_mm256_setzero_ps(); VECTORS]; COLS]; ROWS];
        for r in 0..ROWS {
            for c in 0..COLS {
                for v in 0..VECTORS {
                    lanes[r][c][v] = load(&sums[r][c][v]);
                }
            }
        }
        for (w, x) in w.iter().zip(x) {
            for v in 0..VECTORS {
                for c in 0..COLS {
                    let x = load(&x[v][c]);
                    for r in 0..ROWS {
                        lanes[r][c][v] = _mm256_fmadd_ps(load(&w[v][r]), x, lanes[r][c][v]);
                    }
                }
            }
        }
        for r in 0..ROWS {
            for c in 0..COLS {
                for v in 0..VECTORS {
                    sums[r][c][v] = must_cast(lanes[r][c][v]);
                }
            }
        }
    }

    /// `VECTORS` vectors of lanes in registers, of which a product has `SLICES` sets, one after another.
    struct Gemm<const VECTORS: usize, const SLICES: usize, const ROWS: usize, const COLS: usize> {
        /// Activations: for a group of `COLS` columns, a block of K and a slice, the steps in order.
        x: Vec<[[Vec8; COLS]; VECTORS]>,
        k: usize,
        columns: usize,
    }

    impl<const VECTORS: usize, const SLICES: usize, const ROWS: usize, const COLS: usize>
        Gemm<VECTORS, SLICES, ROWS, COLS>
    {
        const STEP: usize = VECTORS * SLICES * 8;

        fn new(x: &[f32], k: usize) -> Self {
            let columns = x.len() / k;
            let mut packed = Vec::new();
            for c0 in (0..columns).step_by(COLS) {
                for k0 in (0..k).step_by(K_BLOCK) {
                    let steps = K_BLOCK.min(k - k0) / Self::STEP;
                    for slice in 0..SLICES {
                        for step in 0..steps {
                            packed.push(std::array::from_fn(|v| {
                                std::array::from_fn(|c| {
                                    let at = k0 + step * Self::STEP + (slice * VECTORS + v) * 8;
                                    let column = (c0 + c).min(columns - 1);
                                    x[column * k + at..][..8].as_chunks::<8>().0[0]
                                })
                            }));
                        }
                    }
                }
            }
            Self { x: packed, k, columns }
        }

        /// Y = W X for BF16 weights, decoded once into a panel of float32.
        #[target_feature(enable = "avx2,fma")]
        fn run(&self, w: &[u8], y: &mut [f32]) {
            let (k, columns) = (self.k, self.columns);
            let zero = [[[[0f32; 8]; VECTORS]; COLS]; ROWS];
            let (row_groups, col_groups) = (PANEL_ROWS / ROWS, columns.div_ceil(COLS));
            let mut sums = vec![[zero; SLICES]; row_groups * col_groups];
            let per_block = K_BLOCK / Self::STEP;
            let mut panel = vec![[[[0f32; 8]; ROWS]; VECTORS]; row_groups * SLICES * per_block];
            for (weights, y) in
                w.chunks_exact(PANEL_ROWS * k * 2).zip(y.chunks_exact_mut(PANEL_ROWS * columns))
            {
                sums.fill([zero; SLICES]);
                for k0 in (0..k).step_by(K_BLOCK) {
                    let steps = K_BLOCK.min(k - k0) / Self::STEP;
                    for r in 0..PANEL_ROWS {
                        let row = &weights[(r * k + k0) * 2..][..steps * Self::STEP * 2];
                        for (step, from) in row.chunks_exact(Self::STEP * 2).enumerate() {
                            for (i, from) in from.as_chunks::<16>().0.iter().enumerate() {
                                let to = (r / ROWS * SLICES + i / VECTORS) * per_block + step;
                                panel[to][i % VECTORS][r % ROWS] = must_cast(bf16(from));
                            }
                        }
                    }
                    for (index, sums) in sums.iter_mut().enumerate() {
                        let (group, column) = (index % row_groups, index / row_groups);
                        let x = &self.x[column * (k / Self::STEP) * SLICES + k0 / Self::STEP * SLICES..];
                        for (slice, sums) in sums.iter_mut().enumerate() {
                            block::<VECTORS, ROWS, COLS>(
                                &panel[(group * SLICES + slice) * per_block..][..steps],
                                &x[slice * steps..][..steps],
                                sums,
                            );
                        }
                    }
                }
                for (index, sums) in sums.iter().enumerate() {
                    let (r0, c0) = (index % row_groups * ROWS, index / row_groups * COLS);
                    for r in 0..ROWS {
                        for c in 0..COLS.min(columns - c0) {
                            let mut all = [_mm256_setzero_ps(); 4];
                            for (i, lanes) in sums.iter().flat_map(|slice| &slice[r][c]).enumerate() {
                                all[i] = load(lanes);
                            }
                            y[(r0 + r) * columns + c0 + c] = fold(all);
                        }
                    }
                }
            }
        }
    }

    /// Columns and rows of a register block whose vectors lie along the columns.
    const OUTER_COLS: usize = 16;
    const OUTER_ROWS: usize = 6;

    /// One virtual lane of a register block: `OUTER_ROWS` x `OUTER_COLS` chains along the steps.
    #[target_feature(enable = "avx2,fma")]
    fn outer_block(w: &[[f32; OUTER_ROWS]], x: &[[Vec8; 2]], sums: &mut [[Vec8; 2]; OUTER_ROWS]) {
        let mut lanes = [[_mm256_setzero_ps(); 2]; OUTER_ROWS];
        for (w, x) in w.iter().zip(x) {
            let x = [load(&x[0]), load(&x[1])];
            for r in 0..OUTER_ROWS {
                let w = _mm256_set1_ps(w[r]);
                lanes[r][0] = _mm256_fmadd_ps(w, x[0], lanes[r][0]);
                lanes[r][1] = _mm256_fmadd_ps(w, x[1], lanes[r][1]);
            }
        }
        for r in 0..OUTER_ROWS {
            sums[r] = [must_cast(lanes[r][0]), must_cast(lanes[r][1])];
        }
    }

    /// Vectors along the columns; the virtual lanes are passed one after another, each over all of K.
    struct Outer<const LANES: usize> {
        /// For a group of columns and a lane: the steps in order.
        x: Vec<[Vec8; 2]>,
        k: usize,
        columns: usize,
    }

    impl<const LANES: usize> Outer<LANES> {
        fn new(x: &[f32], k: usize) -> Self {
            let columns = x.len() / k;
            let mut packed = Vec::new();
            for c0 in (0..columns).step_by(OUTER_COLS) {
                for lane in 0..LANES {
                    for step in 0..k / LANES {
                        packed.push(std::array::from_fn(|half| {
                            std::array::from_fn(|c| {
                                x[(c0 + half * 8 + c).min(columns - 1) * k + step * LANES + lane]
                            })
                        }));
                    }
                }
            }
            Self { x: packed, k, columns }
        }

        #[target_feature(enable = "avx2,fma")]
        fn run<const GROUPS: usize>(&self, w: &[u8], y: &mut [f32]) {
            let (k, columns, steps) = (self.k, self.columns, self.k / LANES);
            let panel_rows = GROUPS * OUTER_ROWS;
            let mut panel = vec![[0f32; OUTER_ROWS]; GROUPS * k];
            let mut sums = vec![[[[0f32; 8]; 2]; OUTER_ROWS]; LANES * GROUPS];
            for (weights, y) in
                w.chunks_exact(panel_rows * k * 2).zip(y.chunks_exact_mut(panel_rows * columns))
            {
                for (r, row) in weights.chunks_exact(k * 2).enumerate() {
                    for (i, from) in row.as_chunks::<16>().0.iter().enumerate() {
                        let values: Vec8 = must_cast(bf16(from));
                        for (j, value) in values.into_iter().enumerate() {
                            let (step, lane) = ((i * 8 + j) / LANES, (i * 8 + j) % LANES);
                            panel[(lane * GROUPS + r / OUTER_ROWS) * steps + step][r % OUTER_ROWS] = value;
                        }
                    }
                }
                for (column, x) in self.x.chunks_exact(LANES * steps).enumerate() {
                    for (lane, x) in x.chunks_exact(steps).enumerate() {
                        for group in 0..GROUPS {
                            let w = &panel[(lane * GROUPS + group) * steps..][..steps];
                            outer_block(w, x, &mut sums[lane * GROUPS + group]);
                        }
                    }
                    let mut width = LANES;
                    while width > 1 {
                        width /= 2;
                        let (low, high) = sums.split_at_mut(width * GROUPS);
                        for (low, high) in low.as_flattened_mut().iter_mut().zip(high.as_flattened()) {
                            for half in 0..2 {
                                low[half] = must_cast(_mm256_add_ps(load(&low[half]), load(&high[half])));
                            }
                        }
                    }
                    for (r, values) in sums[..GROUPS].as_flattened().iter().enumerate() {
                        let c0 = column * OUTER_COLS;
                        let count = OUTER_COLS.min(columns - c0);
                        y[r * columns + c0..][..count].copy_from_slice(&values.as_flattened()[..count]);
                    }
                }
            }
        }
    }

    /// Twelve independent chains of fused multiply-adds: the peak to compare with.
    #[target_feature(enable = "avx2,fma")]
    fn peak(rounds: usize) -> f32 {
        let mut lanes = [_mm256_set1_ps(1.0); 12];
        let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
        for _ in 0..rounds {
            for lane in &mut lanes {
                *lane = _mm256_fmadd_ps(*lane, a, b);
            }
        }
        lanes.into_iter().map(|lane| fold([lane])).sum()
    }

    struct Variant<'a> {
        name: String,
        flops: f64,
        run: Box<dyn FnMut() + 'a>,
        seconds: Vec<f64>,
    }

    pub(super) fn main(test: bool) {
        let mut seeded = Seeded::new(1);
        let (k, rows, columns) = (7168, 240, 512);
        let dram_rows = if test { rows } else { 6144 };
        let mut bytes = seeded.bytes(dram_rows * k * 2);
        // Exponents of ordinary weights: no NaN, no subnormal product.
        for half in bytes.as_chunks_mut::<2>().0 {
            half[1] = 0x3c | (half[1] & 0x81);
        }
        let scales: Vec<f32> = (0..dram_rows * k / 32).map(|_| seeded.between(0.01, 0.02)).collect();
        let x = seeded.normals(columns * k, 1.0);
        let mut outputs: Vec<Vec<f32>> = Vec::new();
        let rounds = if test { 1 } else { 15 };

        let flops = 2.0 * (rows * k) as f64;
        let mut variants: Vec<Variant<'_>> = Vec::new();
        macro_rules! variant {
            ($name:expr, $flops:expr, $out:expr, $call:expr) => {{
                let mut y = vec![0f32; $out];
                variants.push(Variant {
                    name: $name.to_string(),
                    flops: $flops,
                    run: Box::new(move || {
                        // SAFETY: `main` returned early unless the processor has AVX2 and FMA.
                        unsafe { $call(&mut y) };
                        black_box(&y);
                    }),
                    seconds: Vec::new(),
                });
            }};
        }
        let (bytes, scales, x) = (&bytes[..], &scales[..], &x[..]);
        let (x1, cached) = (&x[..k], &bytes[..rows * k * 2]);
        variant!("peak", 12.0 * 16.0 * 1e5, 1, |y: &mut Vec<f32>| y[0] = peak(100_000));
        for (place, weights, n) in [("cache", cached, rows), ("dram", bytes, dram_rows)] {
            let flops = 2.0 * (n * k) as f64;
            macro_rules! gemv {
                ($lanes:literal, $vectors:literal, $rows:literal) => {
                    variant!(
                        format!("gemv bf16 {place} {} lanes, {} rows", $lanes, $rows),
                        flops,
                        n,
                        |y: &mut Vec<f32>| gemv_bf16::<$vectors, $rows>(weights, x1, y)
                    )
                };
            }
            gemv!(8, 1, 4);
            gemv!(8, 1, 8);
            gemv!(16, 2, 2);
            gemv!(16, 2, 4);
            gemv!(32, 4, 1);
            gemv!(32, 4, 2);
            let (codes, scales) = (&weights[..n * k / 2], &scales[..n * k / 32]);
            macro_rules! i4 {
                ($lanes:literal, $vectors:literal, $rows:literal) => {
                    variant!(
                        format!("gemv i4 {place} {} lanes, {} rows, K along lanes", $lanes, $rows),
                        flops,
                        n,
                        |y: &mut Vec<f32>| gemv_i4_k::<$vectors, $rows>(codes, scales, x1, y)
                    )
                };
            }
            i4!(8, 1, 4);
            i4!(8, 1, 8);
            i4!(16, 2, 2);
            i4!(16, 2, 4);
            i4!(32, 4, 1);
            i4!(32, 4, 2);
            macro_rules! i4_rows {
                ($lanes:literal) => {
                    variant!(
                        format!("gemv i4 {place} {} lanes, rows along lanes", $lanes),
                        flops,
                        n,
                        |y: &mut Vec<f32>| gemv_i4_rows::<$lanes>(codes, scales, x1, y)
                    )
                };
            }
            i4_rows!(8);
            i4_rows!(16);
            i4_rows!(32);
        }
        macro_rules! gemm {
            ($lanes:literal, $vectors:literal, $slices:literal, $rows:literal, $cols:literal) => {
                let gemm = Gemm::<$vectors, $slices, $rows, $cols>::new(x, k);
                variant!(
                    format!(
                        "gemm bf16 {columns} columns, {} lanes, {}x{} x{} slices",
                        $lanes, $rows, $cols, $slices
                    ),
                    flops * columns as f64,
                    rows * columns,
                    |y: &mut Vec<f32>| gemm.run(cached, y)
                )
            };
        }
        gemm!(8, 1, 1, 3, 4);
        gemm!(8, 1, 1, 2, 6);
        gemm!(8, 1, 1, 4, 3);
        gemm!(8, 1, 1, 2, 5);
        gemm!(16, 2, 1, 2, 3);
        gemm!(16, 2, 1, 3, 2);
        gemm!(16, 1, 2, 3, 4);
        gemm!(32, 4, 1, 1, 3);
        gemm!(32, 4, 1, 3, 1);
        gemm!(32, 1, 4, 3, 4);
        macro_rules! outer {
            ($lanes:literal, $groups:literal) => {
                let outer = Outer::<$lanes>::new(x, k);
                variant!(
                    format!(
                        "gemm bf16 {columns} columns, {} lanes in turn, 6x16, {} groups",
                        $lanes, $groups
                    ),
                    flops * columns as f64,
                    rows * columns,
                    |y: &mut Vec<f32>| outer.run::<$groups>(cached, y)
                )
            };
        }
        outer!(8, 2);
        outer!(8, 4);
        outer!(8, 8);
        outer!(16, 4);
        outer!(16, 8);
        outer!(32, 4);
        outer!(32, 8);

        for round in 0..=rounds {
            for variant in &mut variants {
                let start = Instant::now();
                (variant.run)();
                if round > 0 {
                    variant.seconds.push(start.elapsed().as_secs_f64());
                }
            }
        }
        outputs.clear();
        let median = |seconds: &mut Vec<f64>| {
            seconds.sort_by(f64::total_cmp);
            seconds[seconds.len() / 2]
        };
        let peak = variants[0].flops / median(&mut variants[0].seconds.clone());
        println!(
            "K = {k}; {rows} rows in cache, {dram_rows} rows out of cache; one thread; medians of {rounds} rounds"
        );
        println!("{:58} {:>9} {:>9} {:>7}", "variant", "GFLOP/s", "Gw/s", "of peak");
        for variant in &mut variants {
            let rate = variant.flops / median(&mut variant.seconds);
            println!(
                "{:58} {:9.2} {:9.2} {:6.1}%",
                variant.name,
                rate / 1e9,
                rate / 2e9,
                100.0 * rate / peak
            );
        }
    }
}
