//! Processors that this machine is not, played by qemu: no instruction is used that they lack.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::process::{Command, Output};

use serde_json::Value;

/// An emulator of single programs, where one is installed.
const EMULATORS: [&str; 2] = ["qemu-x86_64-static", "qemu-x86_64"];

fn run(program: &mut Command) -> std::io::Result<Output> {
    let model = kimi_testing::kimi_k3_oracle();
    program.arg("run").arg(model).args(["--ids", "1,2,3", "-n", "2", "--ignore-eos", "--json"]).output()
}

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_processor_without_avx2_gets_the_scalar_kernels_a_warning_and_the_same_tokens() {
    let program = env!("CARGO_BIN_EXE_kimi-cli");
    let here = report(&run(&mut Command::new(program)).unwrap());
    for (processor, isa) in [
        ("Nehalem", "scalar"),
        // AVX2 is listed, what it rests on is not: AVX itself, the multiply-add, the system's saving of registers.
        ("Haswell,-avx", "scalar"),
        ("Haswell,-fma", "scalar"),
        ("Haswell,-xsave", "scalar"),
        ("Haswell", "avx2"),
    ] {
        let emulated = |emulator| run(Command::new(emulator).args(["-cpu", processor, program])).ok();
        let Some(output) = EMULATORS.into_iter().find_map(emulated) else {
            return println!("skipped: none of {EMULATORS:?} here");
        };
        let found = report(&output);
        assert_eq!((found["isa"].as_str(), &found["generated_ids"]), (Some(isa), &here["generated_ids"]));
        let warned = String::from_utf8_lossy(&output.stderr).contains("warning: this processor has no AVX2");
        assert_eq!(warned, isa == "scalar", "{processor}");
    }
}
