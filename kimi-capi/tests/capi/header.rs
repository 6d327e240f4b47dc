//! The header and the library say the same.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::*;

/// A function as C writes it: the type of the result, then those of the parameters.
type Signature = Vec<String>;

fn header() -> String {
    std::fs::read_to_string(package("include/kimi_k3_inference.h")).unwrap()
}

/// The text without comments and lines of the preprocessor, with single spaces.
fn plain_c(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, comment)) = rest.split_once("/*") {
        plain.push_str(before);
        rest = comment.split_once("*/").unwrap().1;
    }
    plain.push_str(rest);
    let lines = plain.lines().filter(|line| !line.starts_with('#'));
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

/// A C parameter without its name: `const int * tokens` is `const int *`.
fn c_type(parameter: &str) -> String {
    let spaced = parameter.replace('*', " * ");
    let mut words: Vec<&str> = spaced.split_whitespace().collect();
    let is_named = words.len() > 1 && words.last() != Some(&"*") && words != ["const", "void"];
    if is_named {
        words.pop();
    }
    words.join(" ")
}

fn functions_of_header() -> BTreeMap<String, Signature> {
    let plain = plain_c(&header());
    let mut functions = BTreeMap::new();
    for statement in plain.split(';').map(str::trim) {
        let statement = statement.trim_start_matches("extern \"C\" {").trim();
        if statement.starts_with("typedef") || !statement.contains('(') {
            continue;
        }
        let (before, parameters) = statement.split_once('(').unwrap();
        let parameters = parameters.strip_suffix(')').unwrap();
        let at = before.rfind(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap() + 1;
        let (result, name) = before.split_at(at);
        let mut signature = vec![c_type(&format!("{result} _"))];
        if parameters != "void" {
            signature.extend(parameters.split(',').map(c_type));
        }
        assert_eq!(functions.insert(name.to_owned(), signature), None, "{name}");
    }
    functions
}

/// A Rust type in the words of C.
fn c_type_of_rust(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(inner) = rust.strip_prefix("*const ") {
        return format!("const {} *", c_type_of_rust(inner));
    }
    if let Some(inner) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type_of_rust(inner));
    }
    let c = match rust {
        "c_int" => "int",
        "c_char" => "char",
        "c_void" | "" => "void",
        "f32" => "float",
        "f64" => "double",
        "i64" => "int64_t",
        "usize" => "size_t",
        name if name.starts_with("kimi_") => name,
        other => panic!("{other} has no counterpart in C"),
    };
    c.to_owned()
}

fn functions_of_library() -> BTreeMap<String, Signature> {
    let mut functions = BTreeMap::new();
    let mut folders = vec![package("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                collect(&path, &mut functions);
            }
        }
    }
    functions
}

fn collect(path: &Path, functions: &mut BTreeMap<String, Signature>) {
    let source = std::fs::read_to_string(path).unwrap();
    for item in source.split("#[unsafe(no_mangle)]").skip(1) {
        let (declaration, _) = item.split_once(" {\n").unwrap();
        let (_, declaration) = declaration.split_once("extern \"C\" fn ").unwrap();
        let (name, rest) = declaration.split_once('(').unwrap();
        let (parameters, result) = rest.rsplit_once(')').unwrap();
        let mut signature = vec![c_type_of_rust(result.trim().trim_start_matches("->"))];
        let parameters = parameters.split(',').map(str::trim).filter(|parameter| !parameter.is_empty());
        signature.extend(parameters.map(|parameter| c_type_of_rust(parameter.split_once(':').unwrap().1)));
        assert_eq!(functions.insert(name.to_owned(), signature), None, "{name}");
    }
}

#[test]
fn the_header_declares_exactly_what_the_library_has() {
    let (header, library) = (functions_of_header(), functions_of_library());
    for (name, signature) in &library {
        assert_eq!(header.get(name), Some(signature), "{name}");
    }
    assert_eq!(header.keys().collect::<Vec<_>>(), library.keys().collect::<Vec<_>>());
    let signature = |name: &str| header[name].join(", ");
    assert_eq!(signature("kimi_load_model"), "void *, const char *, int, float, int");
    assert_eq!(signature("kimi_free_model"), "void, void *");
    assert_eq!(signature("kimi_tokenize"), "int, void *, const char *, int *, int");
    assert_eq!(signature("kimi_generate_next_token"), "int, void *, const int *, int");
    assert_eq!(signature("kimi_detokenize"), "int, void *, int, char *, int");
}

#[cfg(unix)]
#[test]
fn the_shared_library_exports_every_function() {
    use std::ffi::CStr;

    let suffix = if cfg!(target_os = "macos") { "dylib" } else { "so" };
    let path = c_path(&libraries().join(format!("libkimi_k3_inference.{suffix}")));
    // SAFETY: the library runs nothing when it is loaded. It stays loaded, so that its symbols stay good.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{path:?} cannot be loaded");
    for name in functions_of_header().keys() {
        // SAFETY: a loaded library and a text that ends with NUL.
        let symbol = unsafe { libc::dlsym(library, c(name).as_ptr()) };
        assert!(!symbol.is_null(), "{name} is not exported");
    }
    // SAFETY: a loaded library and a text that ends with NUL.
    let symbol = unsafe { libc::dlsym(library, c"kimi_version".as_ptr()) };
    // SAFETY: the function has this signature, and its result is a text that lives for ever.
    let version = unsafe {
        let version: extern "C" fn() -> *const std::ffi::c_char = std::mem::transmute(symbol);
        CStr::from_ptr(version())
    };
    assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_statuses_are_those_of_the_tests() {
    let plain = plain_c(&header());
    for (name, value) in [
        ("KIMI_OK", OK),
        ("KIMI_END_OF_SEQUENCE", END_OF_SEQUENCE),
        ("KIMI_STOPPED", STOPPED),
        ("KIMI_INVALID_ARGUMENT", INVALID_ARGUMENT),
        ("KIMI_INVALID_HANDLE", INVALID_HANDLE),
        ("KIMI_BUSY", BUSY),
        ("KIMI_BUFFER_TOO_SMALL", BUFFER_TOO_SMALL),
        ("KIMI_DOES_NOT_FIT", DOES_NOT_FIT),
        ("KIMI_CORRUPT", CORRUPT),
        ("KIMI_CONTEXT_FULL", CONTEXT_FULL),
        ("KIMI_CANCELLED", CANCELLED),
        ("KIMI_NO_TOKENIZER", NO_TOKENIZER),
    ] {
        assert!(plain.contains(&format!("{name} = {value}")), "{name}");
    }
}

const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"];

#[test]
fn the_header_is_good_c_and_good_cpp() {
    let dir = tempfile::tempdir().unwrap();
    for (name, compiler_name, standard) in
        [("a.c", "cc", "-std=c99"), ("b.c", "cc", "-std=c11"), ("c.cpp", "c++", "-std=c++17")]
    {
        let Some(mut command) = compiler(compiler_name) else { continue };
        let file = dir.path().join(name);
        // Twice, as headers are.
        std::fs::write(&file, "#include \"kimi_k3_inference.h\"\n".repeat(2)).unwrap();
        command.arg(standard).args(STRICT).arg("-I").arg(package("include")).arg(&file);
        succeed(&mut command);
    }
}

/// The C programs in Markdown files.
fn programs(markdown: &str) -> impl Iterator<Item = &str> {
    markdown.split("```c\n").skip(1).map(|rest| rest.split_once("```").unwrap().0)
}

#[test]
fn the_programs_of_the_documents_compile() {
    let dir = tempfile::tempdir().unwrap();
    let mut count = 0;
    // The guide is not part of the package.
    for document in ["README.md", "../docs/c-api.md"].map(package).iter().filter(|path| path.exists()) {
        for program in programs(&std::fs::read_to_string(document).unwrap()) {
            let Some(mut cc) = compiler("cc") else { return };
            let file = dir.path().join("program.c");
            std::fs::write(&file, program).unwrap();
            succeed(cc.arg("-std=c99").args(STRICT).arg("-I").arg(package("include")).arg(&file));
            count += 1;
        }
    }
    assert!(count > 0);
}

#[test]
fn every_instruction_set_is_listed() {
    let python = package("../python/src/kimi_k3/model.py");
    for text in [header(), std::fs::read_to_string(python).unwrap()] {
        let (_, isa) = text.split_once("isa        text").or_else(|| text.split_once(":param isa:")).unwrap();
        let (isa, _) = isa.split_once("default").unwrap();
        let listed: Vec<&str> = isa
            .split(|c: char| !(c.is_alphanumeric() || c == '-'))
            .filter(|word| word.parse::<kimi_kernels::Isa>().is_ok())
            .collect();
        assert_eq!(listed, kimi_kernels::Isa::ALL.map(kimi_kernels::Isa::name));
    }
}
