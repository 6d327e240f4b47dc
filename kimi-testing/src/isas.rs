//! Which instruction sets a test run covered.

/// Prints the instruction sets that a test exercised and those that this processor lacks.
///
/// # Panics
/// If `KIMI_TEST_REQUIRE_ISA` (names separated by commas) lists one that was not exercised: on a machine that is meant
/// to cover it, a skip is a failure.
pub fn report_isas(known: &[&str], exercised: &[&str]) {
    let skipped: Vec<_> = known.iter().filter(|isa| !exercised.contains(isa)).copied().collect();
    println!(
        "instruction sets exercised: {}; not on this processor: {}",
        exercised.join(", "),
        skipped.join(", ")
    );
    if let Ok(required) = std::env::var("KIMI_TEST_REQUIRE_ISA") {
        for isa in required.split(',').map(str::trim).filter(|isa| !isa.is_empty()) {
            assert!(
                exercised.contains(&isa),
                "KIMI_TEST_REQUIRE_ISA asks for `{isa}`, which was not exercised"
            );
        }
    }
}
