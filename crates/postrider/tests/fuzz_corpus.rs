//! Plays the fuzzer's corpus, and everything it ever found, through the laws that the fuzz targets check.
//!
//! On the stable compiler and in seconds: what was found once stays found, whether or not anybody fuzzes.

#[path = "../../../fuzz/src/laws/mod.rs"]
mod laws;

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

/// A test for each law, by its name.
macro_rules! each_law {
    ($($name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                replay(stringify!($name));
            }
        )+

        #[test]
        fn every_law_has_a_test_a_target_and_a_corpus() {
            let tested = [$(stringify!($name)),+];
            let laws: Vec<&str> = laws::LAWS.iter().map(|(name, _)| *name).collect();
            assert_eq!(laws, tested);
            let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).expect("the fuzzer's manifest");
            let targets: Vec<&str> = manifest
                .split("[[bin]]\nname = \"")
                .skip(1)
                .map(|rest| rest.split('"').next().unwrap_or_default())
                .collect();
            assert_eq!(targets, tested);
            for name in tested {
                let target = fs::read_to_string(fuzz().join(format!("fuzz_targets/{name}.rs"))).expect("a target");
                assert!(target.contains(&format!("laws::{name}::check(data)")), "{target}");
            }
        }
    };
}

each_law!(
    address_spellings,
    api_bodies,
    configuration,
    database_address,
    ids,
    iterators,
    message_envelope,
    outbox_row,
    redirect_location,
    retry_after,
    rules,
    schedule_algebra,
    signature_header,
    sources,
    stored_rows,
    times,
    tokens,
    url_and_host,
    verdicts,
);

fn replay(name: &str) {
    let (_, law) = laws::LAWS.iter().find(|(known, _)| *known == name).expect("a law of this name");
    let corpus = inputs(&fuzz().join("corpus").join(name));
    assert!(!corpus.is_empty(), "{name} has no corpus");
    for path in corpus.into_iter().chain(inputs(&fuzz().join("found").join(name))) {
        let input = fs::read(&path).expect("an input");
        if catch_unwind(AssertUnwindSafe(|| law(&input))).is_err() {
            panic!("{name} does not hold for {}", path.display());
        }
    }
}

/// None where nothing was ever found.
fn inputs(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry of the corpus").path()).collect();
    paths.sort();
    paths
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}
