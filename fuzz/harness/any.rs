//! libFuzzer over one target, which `NYALA_FUZZ_TARGET` names: one program to build for all of them.

#![no_main]

use std::sync::LazyLock;

use fuzz::Target;
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<&'static Target> = LazyLock::new(|| {
    let name = std::env::var("NYALA_FUZZ_TARGET").expect("NYALA_FUZZ_TARGET names a target");
    fuzz::target(&name).unwrap_or_else(|| panic!("{name} is no target"))
});

fuzz_target!(|input: &[u8]| fuzz::replay(&TARGET, input));
