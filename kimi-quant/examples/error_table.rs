//! What each format costs: bits and relative error, on weights of a normal distribution and on those of a trained model.
//!
//! `cargo run --release -p kimi-quant --example error_table [-- --json] [FOLDER]`: FOLDER holds safetensors files; by default the
//! demo model of this workspace. Its BF16 matrices are the trunk.

use std::path::{Path, PathBuf};

use kimi_quant::int::{Bits, Levels};
use kimi_quant::metrics::{ErrorSummary, compare};
use kimi_quant::quantize::{Gptq, Method, Quantizer};
use kimi_quant::{Bf16, IntFormat, IntView, bf12, mxfp4};
use kimi_testing::Seeded;

/// Rows and columns of the synthetic matrix: an ordinary one of Kimi K3.
const GAUSSIAN: [usize; 2] = [4096, 7168];

struct Matrix {
    shape: [usize; 2],
    weights: Vec<f32>,
}

struct Row {
    format: String,
    method: &'static str,
    bits: f64,
    errors: [ErrorSummary; 2],
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut json, mut folder) =
        (false, PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../kimi-cli/demo/model")));
    for argument in std::env::args_os().skip(1) {
        if argument == "--json" {
            json = true;
        } else {
            folder = argument.into();
        }
    }
    let gaussian =
        vec![Matrix { shape: GAUSSIAN, weights: Seeded::new(1).normals(GAUSSIAN[0] * GAUSSIAN[1], 0.02) }];
    let trunk = trunk(&folder)?;
    let rows = rows([&gaussian, &trunk])?;
    let bf12 = [bf12_share(&gaussian)?, bf12_share(&trunk)?];
    let gptq = ["i4:g32", "i3:g32"].map(|format| (format, gptq_share(format)));
    if json {
        print_json(&rows, bf12, &gptq)?;
    } else {
        print_table(&rows, bf12, &gptq);
    }
    Ok(())
}

/// The BF16 matrices of all safetensors files in a folder, embedding and output included.
fn trunk(folder: &Path) -> Result<Vec<Matrix>, Box<dyn std::error::Error>> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    paths.sort();
    let mut matrices = Vec::new();
    for path in paths {
        let bytes = std::fs::read(&path)?;
        let file = safetensors::SafeTensors::deserialize(&bytes)?;
        let mut names = file.names();
        names.sort_unstable();
        for name in names {
            let tensor = file.tensor(name)?;
            if let (safetensors::Dtype::BF16, &[rows, cols]) = (tensor.dtype(), tensor.shape())
                && rows > 1
            {
                let halves = tensor.data().as_chunks::<2>().0;
                let weights = halves.iter().map(|half| Bf16(u16::from_le_bytes(*half)).to_f32()).collect();
                matrices.push(Matrix { shape: [rows, cols], weights });
            }
        }
    }
    Ok(matrices)
}

fn rows(sets: [&[Matrix]; 2]) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let mut rows = Vec::new();
    for name in [
        "i8:g128",
        "i6:g64",
        "i4:g128",
        "i4:g64",
        "i4:g32",
        "i4:g32:zp",
        "i4:g32:cb",
        "i3:g64",
        "i3:g32",
        "i2:g32",
        "i2:g32:zp",
    ] {
        let format: IntFormat = name.parse()?;
        let methods = [(Method::AbsMax, "absmax"), (Method::Search, "search"), (Method::Hqq, "hqq")];
        for (method, label) in methods {
            if method == Method::Hqq && format.levels() != Levels::ZeroPoint {
                continue;
            }
            let encode = |matrix: &Matrix| -> Result<Vec<f32>, Box<dyn std::error::Error>> {
                let bytes = Quantizer::new(format).method(method).quantize(matrix.shape, &matrix.weights)?;
                Ok(decode(IntView::new(matrix.shape, format, &bytes)?))
            };
            let errors = [error(sets[0], encode)?, error(sets[1], encode)?];
            rows.push(Row { format: name.to_owned(), method: label, bits: format.bits_per_weight(), errors });
        }
        assert!(Bits::ALL.contains(&format.bits()));
    }
    let encode = |matrix: &Matrix| -> Result<Vec<f32>, Box<dyn std::error::Error>> {
        let packed = mxfp4::quantize(matrix.shape, &matrix.weights)?;
        let view = packed.view();
        let mut values = vec![0.0; matrix.weights.len()];
        for (row, values) in values.chunks_exact_mut(matrix.shape[1]).enumerate() {
            view.decode_row(row, values);
        }
        Ok(values)
    };
    let errors = [error(sets[0], encode)?, error(sets[1], encode)?];
    rows.push(Row { format: "mxfp4".to_owned(), method: "specification", bits: 4.25, errors });
    Ok(rows)
}

fn decode(view: IntView<'_>) -> Vec<f32> {
    let mut values = vec![0.0; view.rows() * view.cols()];
    for (row, values) in values.chunks_exact_mut(view.cols()).enumerate() {
        view.decode_row(row, values);
    }
    values
}

/// The error over all matrices that the format can hold, as one long vector.
fn error(
    matrices: &[Matrix],
    encode: impl Fn(&Matrix) -> Result<Vec<f32>, Box<dyn std::error::Error>>,
) -> Result<ErrorSummary, Box<dyn std::error::Error>> {
    let (mut original, mut approximation) = (Vec::new(), Vec::new());
    for matrix in matrices.iter().filter(|matrix| matrix.shape[1].is_multiple_of(mxfp4::GROUP_SIZE)) {
        approximation.extend(encode(matrix)?);
        original.extend_from_slice(&matrix.weights);
    }
    Ok(compare(&original, &approximation))
}

/// BF12 bytes over BF16 bytes; a matrix that does not shrink stays BF16.
fn bf12_share(matrices: &[Matrix]) -> Result<f64, Box<dyn std::error::Error>> {
    let (mut coded, mut plain) = (0, 0);
    for matrix in matrices {
        let bytes: Vec<u8> =
            matrix.weights.iter().flat_map(|&weight| Bf16::from_f32(weight).0.to_le_bytes()).collect();
        coded += bf12::encoded_size(matrix.shape, &bytes)?.min(bytes.len());
        plain += bytes.len();
    }
    Ok(coded as f64 / plain as f64)
}

/// Squared error of the output of a matrix of 64 x 512 with GPTQ over that with error search, on inputs of which neighbours are
/// correlated by 0.9, other samples than those that the Hessian is made of.
fn gptq_share(format: &str) -> f64 {
    let (shape, mut seeded) = ([64, 512], Seeded::new(9));
    let [rows, cols] = shape;
    let mut inputs = |samples: usize| -> Vec<Vec<f32>> {
        let mut sample = || {
            let mut last = 0.0;
            let step = |_| {
                last = 0.9 * last + 0.436 * seeded.normal();
                last
            };
            (0..cols).map(step).collect()
        };
        (0..samples).map(|_| sample()).collect()
    };
    let (calibration, test) = (inputs(2048), inputs(512));
    let weights = Seeded::new(10).normals(rows * cols, 0.02);
    let mut hessian = vec![0.0; cols * cols];
    for x in &calibration {
        for (i, row) in hessian.chunks_exact_mut(cols).enumerate() {
            row.iter_mut().zip(x).for_each(|(sum, &value)| *sum += f64::from(x[i]) * f64::from(value));
        }
    }
    let format: IntFormat = format.parse().expect("a format");
    let output_error = |bytes: &[u8]| -> f64 {
        let decoded = decode(IntView::new(shape, format, bytes).expect("just made"));
        let difference: Vec<f32> = weights.iter().zip(&decoded).map(|(a, b)| a - b).collect();
        let outputs = test.iter().flat_map(|x| {
            difference
                .chunks_exact(cols)
                .map(move |w| w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>())
        });
        outputs.map(|y| y * y).sum()
    };
    let searched = Quantizer::new(format).quantize(shape, &weights).expect("finite");
    let gptq = Gptq::new(format, cols, cols, &hessian, 0.01).expect("positive definite");
    let moved = gptq.quantize(shape, &weights).expect("finite weights");
    output_error(&moved) / output_error(&searched)
}

fn print_table(rows: &[Row], bf12: [f64; 2], gptq: &[(&str, f64)]) {
    println!(
        "| format | method | bits per weight | relative error, Gaussian | SQNR, dB | relative error, trained | cosine, trained |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for Row { format, method, bits, errors: [gaussian, trained] } in rows {
        println!(
            "| {format} | {method} | {bits:.3} | {:.2} % | {:.1} | {:.2} % | {:.5} |",
            gaussian.relative_rms * 100.0,
            gaussian.sqnr_db,
            trained.relative_rms * 100.0,
            trained.cosine
        );
    }
    println!(
        "\nBF12 takes {:.2} % of BF16 on Gaussian rows, {:.2} % on the trained trunk.",
        bf12[0] * 100.0,
        bf12[1] * 100.0
    );
    for (format, share) in gptq {
        println!("GPTQ at {format}: {:.1} % of the squared output error of error search.", share * 100.0);
    }
}

fn print_json(rows: &[Row], bf12: [f64; 2], gptq: &[(&str, f64)]) -> Result<(), serde_json::Error> {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            let [gaussian, trained] = row.errors.map(|error| {
                serde_json::json!({
                    "relative_rms": error.relative_rms,
                    "max_absolute": error.max_absolute,
                    "sqnr_db": error.sqnr_db,
                    "cosine": error.cosine,
                })
            });
            serde_json::json!({
                "format": row.format,
                "method": row.method,
                "bits_per_weight": row.bits,
                "gaussian": gaussian,
                "trained": trained,
            })
        })
        .collect();
    let gptq: serde_json::Map<_, _> =
        gptq.iter().map(|&(format, share)| (format.to_owned(), share.into())).collect();
    let report = serde_json::json!({
        "rows": rows,
        "bf12_share": {"gaussian": bf12[0], "trained": bf12[1]},
        "gptq_share_of_squared_output_error": gptq,
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
