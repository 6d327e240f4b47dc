//! What matrices see, and models that were packed with it.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kimi_kernels::{Isa, Kernels};
use kimi_model::calibrate::{CalibrateOptions, Calibration, Moments, gather};
use kimi_model::eval::{Comparison, compare};
use kimi_model::pack::{PackOptions, Recipe, pack};
use kimi_model::{Engine, EngineOptions, Error};
use kimi_testing::{demo_model, kimi_k3_oracle};
use serde_json::{Value, json};
use support::{engine, open, tensors_of};

/// Texts that the demo model was not trained on, as ids of its tokenizer.
fn text(which: &str) -> Vec<u32> {
    let texts = [
        (
            "calibration",
            "And it came to pass in those days, that the king said unto the people, Let us go up to the city. Then they \
             went up, and the people did as the king had said. And when the evening was come, the old man took the \
             bread, and gave to them that were with him. \"I do not know what you mean,\" said the girl, and she \
             looked out of the window. The ship lay in the harbour, and the captain walked up and down the deck with \
             his hands behind his back. In the morning there was a great noise in the street, and we went to see what \
             it was. He had been a soldier in his youth, and he still spoke of the war as if it were yesterday.",
        ),
        (
            "test",
            "The next day the children went into the wood to look for their father. There was a house at the end of \
             the road, and an old woman stood before the door. \"Where do you come from?\" she asked. And they answered \
             her, We are come from the land of our fathers, to seek bread. So she let them in, and gave them milk.",
        ),
    ];
    let (_, text) = texts.into_iter().find(|(name, _)| *name == which).unwrap();
    let tokenizer = kimi_text::Tokenizer::from_dir(demo_model()).unwrap();
    tokenizer.encode(text, kimi_text::Specials::AsText).into_iter().map(|kimi_text::TokenId(id)| id).collect()
}

fn options(hessian_block: Option<usize>, experts: bool) -> CalibrateOptions {
    let mut options = CalibrateOptions::default();
    (options.hessian_block, options.experts) = (hessian_block, experts);
    options
}

fn gathered(engine: &mut Engine, options: &CalibrateOptions, windows: &[&[u32]]) -> Moments {
    let mut moments = Moments::new(engine.model(), options);
    for window in windows {
        moments = gather(engine, moments, window, 0, &AtomicBool::new(false)).unwrap();
    }
    moments
}

fn saved(dir: &Path, options: &CalibrateOptions, model: &Path, ids: &[u32]) -> Calibration {
    let path = dir.join("stats.safetensors");
    let mut engine = engine(model, |options| options.positions = 64);
    let windows: Vec<_> = ids.chunks(64).collect();
    gathered(&mut engine, options, &windows).save(&path, &json!({ "text": "x".repeat(64) }), true).unwrap();
    Calibration::open(&path).unwrap()
}

/// The values of a tensor in a safetensors file, eight bytes each.
fn values(path: &Path, tensor: &str) -> Vec<f64> {
    let bytes = std::fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    file.tensor(tensor).unwrap().data().as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect()
}

#[test]
fn the_first_matrices_see_the_normed_embedding() {
    let model = kimi_k3_oracle();
    let dir = tempfile::tempdir().unwrap();
    let window = [5, 9, 2, 44, 17];
    let inputs = [0, 5, 9, 2, 44];
    // What it is, by other means.
    let tensors = tensors_of(&model);
    let find = |end: &str| {
        let (_, tensor) = tensors.iter().find(|(name, _)| name.ends_with(end)).unwrap();
        let bytes = tensor.bytes.as_chunks().0;
        bytes.iter().map(|&b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)).collect::<Vec<_>>()
    };
    let (embedding, norm) = (find("embed_tokens.weight"), find("layers.0.input_layernorm.weight"));
    let hidden = norm.len();
    let kernels = Kernels::with_isa(Isa::Scalar).unwrap();
    let epsilon = open(&model).config().rms_norm_eps;
    let mut expected = vec![0.0f64; hidden * hidden];
    for id in inputs {
        let mut x = vec![0.0; hidden];
        kernels.rms_norm(&embedding[id * hidden..][..hidden], &norm, epsilon, &mut x);
        for i in 0..hidden {
            for j in 0..=i {
                expected[i * hidden + j] += f64::from(x[i]) * f64::from(x[j]);
            }
        }
    }
    for block in [None, Some(128)] {
        let path = dir.path().join("stats");
        let mut engine = engine(&model, |_| ());
        let moments = gathered(&mut engine, &options(block, false), &[&window]);
        assert_eq!((moments.tokens(), moments.windows()), (5, 1));
        moments.save(&path, &Value::Null, true).unwrap();
        let found = values(&path, "operand.00000");
        match block {
            None => assert_eq!(found, (0..hidden).map(|i| expected[i * hidden + i]).collect::<Vec<_>>()),
            Some(block) => {
                assert!(block >= hidden, "one block");
                assert_eq!(found, expected);
            }
        }
    }
}

#[test]
fn moments_do_not_depend_on_how_the_text_is_read() {
    let model = demo_model();
    let ids = text("calibration");
    let windows: Vec<_> = ids[..96].chunks(48).collect();
    let what = options(Some(128), true);
    let run = |change: &dyn Fn(&mut EngineOptions)| {
        let mut engine = engine(&model, |options| {
            options.columns = 48;
            change(options);
        });
        gathered(&mut engine, &what, &windows)
    };
    let expected = run(&|_| ());
    let one_each = run(&|options| {
        options.columns = 5;
        options.threads = Some(1);
    });
    assert!(one_each == expected);
    let scalar = run(&|options| {
        options.isa = Some(Isa::Scalar);
        options.threads = Some(2);
    });
    assert!(scalar == expected);
    assert_ne!(expected, Moments::new(&open(&model), &what));
}

#[test]
fn memory_for_the_moments_is_planned() {
    let model = open(&demo_model());
    let what = options(Some(256), true);
    let bytes = Moments::bytes(&model, &what);
    let plan = |beside: u64| {
        let mut options = EngineOptions::default();
        (options.ram_bytes, options.beside_bytes) = (Some(1 << 30), beside);
        kimi_model::Plan::floor(&model, &options).unwrap()
    };
    let (without, with) = (plan(0), plan(bytes));
    assert_eq!(with.total_bytes() - without.total_bytes(), bytes);
    assert!(with.to_string().contains("beside the engine"), "{with}");
    // The file holds them and little else.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stats");
    Moments::new(&model, &what).save(&path, &Value::Null, false).unwrap();
    let file = std::fs::metadata(&path).unwrap().len();
    assert!(file > bytes && file < bytes + 200_000, "{file} {bytes}");
}

#[test]
fn going_on_from_a_file_gives_the_file_of_an_uninterrupted_run() {
    let (model, dir) = (demo_model(), tempfile::tempdir().unwrap());
    let ids = text("calibration");
    let windows: Vec<_> = ids[..90].chunks(30).collect();
    let what = options(Some(128), true);
    let question = json!({ "window": 30 });
    let [whole, parts] = ["whole", "parts"].map(|name| dir.path().join(name));
    let mut first = engine(&model, |_| ());
    gathered(&mut first, &what, &windows).save(&whole, &question, true).unwrap();
    gathered(&mut first, &what, &windows[..1]).save(&parts, &question, false).unwrap();

    // Cancelled in the second window; another process goes on.
    let begun = Calibration::open(&parts).unwrap();
    assert!(!begun.is_finished() && begun.question() == &question);
    let moments = Moments::load(first.model(), &what, &begun).unwrap();
    let cancelled = gather(&mut first, moments, windows[1], 0, &AtomicBool::new(true));
    assert!(matches!(cancelled, Err(Error::Cancelled)));
    let mut second = engine(&model, |options| options.threads = Some(1));
    let mut moments = Moments::load(second.model(), &what, &begun).unwrap();
    assert_eq!((moments.windows(), moments.tokens()), (1, 30));
    for window in &windows[1..] {
        moments = gather(&mut second, moments, window, 0, &AtomicBool::new(false)).unwrap();
    }
    moments.save(&parts, &question, true).unwrap();
    assert!(std::fs::read(&parts).unwrap() == std::fs::read(&whole).unwrap());
    // An engine that was used for it is as good as any.
    let mut session = second.session().unwrap();
    let again = support::feed(&mut second, &mut session, &windows[0][..8], 4);
    let mut fresh = engine(&model, |_| ());
    let mut session = fresh.session().unwrap();
    assert!(again == support::feed(&mut fresh, &mut session, &windows[0][..8], 8));
}

fn packed(
    model: &Path,
    target: &Path,
    recipe: &Recipe,
    calibration: Option<Arc<Calibration>>,
) -> Result<(), Error> {
    let mut options = PackOptions::new(recipe.clone());
    options.calibration = calibration;
    pack(&open(model), model, target, &options, &|_| (), &AtomicBool::new(false)).map(|_| ())
}

fn divergence(packed: &Path, reference: &Path, ids: &[u32]) -> f64 {
    let [mut packed, mut reference] =
        [packed, reference].map(|dir| engine(dir, |options| options.columns = 64));
    let mut all = Comparison::default();
    for window in ids.chunks(64) {
        let never = AtomicBool::new(false);
        all.add(&compare(&mut packed, &mut reference, window, 0, false, &never).unwrap());
    }
    all.mean_divergence()
}

#[test]
fn what_is_known_of_the_inputs_lessens_the_loss_on_another_text() {
    let (model, dir) = (demo_model(), tempfile::tempdir().unwrap());
    let (calibration, test) = (text("calibration"), text("test"));
    let hessians = Arc::new(saved(dir.path(), &options(Some(1024), false), &model, &calibration));
    for trunk in ["i4", "i3", "i2"] {
        let recipe = Recipe::new(trunk.parse().unwrap());
        let [plain, calibrated] = [None, Some(hessians.clone())].map(|calibration| {
            let target = tempfile::tempdir().unwrap();
            packed(&model, target.path(), &recipe, calibration).unwrap();
            divergence(target.path(), &model, &test)
        });
        assert!(calibrated < 0.95 * plain, "{trunk}: {calibrated} {plain}");
    }
    // Squares of what each expert sees, where experts have few bits.
    let squares = Arc::new(saved(dir.path(), &options(None, true), &model, &calibration));
    let mut recipe = Recipe::new("bf12".parse().unwrap());
    recipe.experts = Some("i2".parse().unwrap());
    let [plain, calibrated] = [None, Some(squares)].map(|calibration| {
        let target = tempfile::tempdir().unwrap();
        packed(&model, target.path(), &recipe, calibration).unwrap();
        divergence(target.path(), &model, &test)
    });
    assert!(calibrated < plain, "{calibrated} {plain}");
}

#[test]
fn the_manifest_tells_the_calibration_and_packing_goes_on_only_with_it() {
    let (model, dir) = (kimi_k3_oracle(), tempfile::tempdir().unwrap());
    let target = dir.path().join("packed");
    let recipe = Recipe::new("i4".parse().unwrap());
    let ids: Vec<u32> = (1..40).collect();
    let calibration = Arc::new(saved(dir.path(), &options(None, false), &model, &ids));
    let mut options = PackOptions::new(recipe.clone());
    options.calibration = Some(calibration.clone());
    // Cancelled at once: the journal is there.
    let stopped = pack(&open(&model), &model, &target, &options, &|_| (), &AtomicBool::new(true));
    assert!(matches!(stopped, Err(Error::Cancelled)));
    let error = packed(&model, &target, &recipe, None).unwrap_err().to_string();
    assert!(error.contains("calibration was squares over 39 tokens"), "{error}");
    packed(&model, &target, &recipe, Some(calibration)).unwrap();
    let summary = kimi_model::inspect::Summary::new(&open(&target));
    assert!(summary.recipe["calibration"].starts_with("squares over 39 tokens, "), "{:?}", summary.recipe);
    // What is lossless does not ask.
    let lossless = Recipe::new("bf12".parse().unwrap());
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    packed(&model, &a, &lossless, None).unwrap();
    packed(
        &model,
        &b,
        &lossless,
        Some(Arc::new(Calibration::open(&dir.path().join("stats.safetensors")).unwrap())),
    )
    .unwrap();
    let layer = "layer-00000.safetensors";
    assert!(std::fs::read(a.join(layer)).unwrap() == std::fs::read(b.join(layer)).unwrap());
}

#[test]
fn a_file_that_does_not_fit_or_is_damaged_is_refused() {
    let (model, dir) = (kimi_k3_oracle(), tempfile::tempdir().unwrap());
    let what = options(Some(128), true);
    let ids: Vec<u32> = (1..40).collect();
    let path = dir.path().join("stats.safetensors");
    let calibration = saved(dir.path(), &what, &model, &ids);
    let good = std::fs::read(&path).unwrap();
    let opened = open(&model);
    assert_eq!(Moments::load(&opened, &what, &calibration).unwrap().tokens(), 39);

    let mut recipe = Recipe::new("i4".parse().unwrap());
    recipe.experts = Some("i3".parse().unwrap());
    let attempt = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let calibration = Calibration::open(&path).map_err(|error| error.to_string())?;
        let loaded = Moments::load(&opened, &what, &calibration).map(|_| ()).map_err(|e| e.to_string());
        let target = tempfile::tempdir().unwrap();
        let packed = packed(&model, target.path(), &recipe, Some(Arc::new(calibration)));
        let packed = packed.map_err(|error| error.to_string());
        // What changes the names alone makes it another model's, of which packing uses what it knows.
        assert!(loaded.is_err() || packed.is_ok(), "{loaded:?} {packed:?}");
        packed
    };
    attempt(&good).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&good).unwrap();
    let place = |name: &str| {
        let data = tensors.tensor(name).unwrap().data();
        let start = data.as_ptr() as usize - good.as_ptr() as usize;
        start..start + data.len()
    };
    // One byte of every tensor that holds sums; the table of contents comes below.
    for name in tensors.names().into_iter().filter(|name| *name != "calibration") {
        let mut bytes = good.clone();
        let at = place(name).start + place(name).len() / 2;
        bytes[at] ^= 0x10;
        let error = attempt(&bytes).unwrap_err();
        assert!(error.contains("stats.safetensors"), "{name}: {error}");
    }
    for len in [0, 7, 100, good.len() / 2, good.len() - 1] {
        attempt(&good[..len]).unwrap_err();
    }

    // The table of contents, changed and sound otherwise.
    let contents = place("calibration");
    let table: Value = serde_json::from_slice(&good[contents.clone()]).unwrap();
    let changed = |change: &dyn Fn(&mut Value), expected: &str| {
        let mut table = table.clone();
        // Leaves room for what takes more digits.
        table["question"] = Value::Null;
        change(&mut table);
        let mut json = table.to_string().into_bytes();
        assert!(json.len() <= contents.len(), "room for the table");
        json.resize(contents.len(), b' ');
        let mut bytes = good.clone();
        bytes[contents.clone()].copy_from_slice(&json);
        std::fs::write(&path, &bytes).unwrap();
        let target = tempfile::tempdir().unwrap();
        let error = Calibration::open(&path)
            .and_then(|calibration| packed(&model, target.path(), &recipe, Some(Arc::new(calibration))))
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    };
    changed(&|table| table["format"] = 2.into(), "format 2");
    changed(&|table| table["finished"] = false.into(), "not finished");
    changed(&|table| table["operands"] = json!([]), "another model");
    changed(&|table| table["operands"][0]["cols"] = 9.into(), "columns");
    changed(&|table| table["block"] = 9.into(), "bytes");
    changed(&|table| table["experts"][0]["count"] = 9.into(), "experts");
    changed(&|table| table["experts"][0]["inner"] = u64::MAX.into(), "experts");

    std::fs::write(&path, &good).unwrap();
    let calibration = Calibration::open(&path).unwrap();
    for other in [options(None, true), options(Some(128), false), options(Some(256), true)] {
        assert!(matches!(Moments::load(&opened, &other, &calibration), Err(Error::Calibration { .. })));
    }
    let demo = open(&demo_model());
    assert!(matches!(Moments::load(&demo, &what, &calibration), Err(Error::Calibration { .. })));
    let error = Calibration::open(&model.join("config.json")).unwrap_err();
    assert!(error.to_string().contains("config.json"), "{error}");
    let weights = std::fs::read_dir(&model).unwrap().map(|entry| entry.unwrap().path());
    let shard =
        weights.into_iter().find(|path| path.extension().is_some_and(|e| e == "safetensors")).unwrap();
    assert!(Calibration::open(&shard).unwrap_err().to_string().contains("is no calibration"));
}
