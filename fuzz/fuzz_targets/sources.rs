#![no_main]

use libfuzzer_sys::fuzz_target;
use postrider_fuzz::laws;

fuzz_target!(|data: &[u8]| laws::sources::check(data));
