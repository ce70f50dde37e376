//! The harness's own promise: it passes a server that is right at any speed, and fails one that is wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

#[test]
fn a_server_that_delivers_all_once_passes() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    let output = bench(
        folder.path(),
        "none",
        &["--only", "floor,end-to-end,fan-out,steady,batches,http2,idle", "--json", json.to_str().unwrap()],
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("lost, duplicated, misnamed, damaged: none"), "{text}");

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    for scenario in ["floor", "end_to_end", "fan_out", "steady", "batches", "http2"] {
        assert!(report["figures"][scenario]["median"]["delivered"].as_u64().unwrap() > 0, "{scenario}");
    }
    assert!(report["figures"]["batches"]["median"]["refused"].as_u64().unwrap() > 0, "some of a batch were sent again");
    std::fs::remove_file(json).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn relays_show_the_ceiling() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    let output =
        bench(folder.path(), "none", &["--only", "floor,ceiling,end-to-end", "--json", json.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let ceilings = report["figures"]["ceilings"].as_array().unwrap();
    assert_eq!(ceilings.len(), 2);
    for (ceiling, keeps) in ceilings.iter().zip(["nothing", "rows"]) {
        assert_eq!(ceiling["keeps"], keeps);
        for shape in ["end_to_end", "fan_out"] {
            let median = &ceiling[shape]["median"];
            assert!(median["delivered"].as_u64().unwrap() > 0 && median["lost"] == 0, "{keeps}, {shape}: {median}");
        }
    }
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("| relay that keeps rows ") && text.contains("| Postrider, of the relay that keeps rows "),
        "{text}"
    );
    std::fs::remove_file(json).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn a_database_of_its_own_is_started_for_postgresql() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    // Where PostgreSQL's user may write, too.
    let dir = std::env::temp_dir();
    let output = bench(&dir, "none", &["--only", "pg-end-to-end", "--statements", "--json", json.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let median = &report["figures"]["postgres"]["one_node"]["median"];
    assert!(median["delivered"].as_u64().unwrap() > 0, "{median}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("| one node |") && !text.contains("end to end / floor"), "{text}");
}

#[test]
fn a_server_that_is_wrong_fails() {
    for (fault, counted) in
        [("lose", "lost"), ("duplicate", "duplicated"), ("rename", "misnamed"), ("damage", "damaged")]
    {
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("figures.json");
        let output =
            bench(folder.path(), fault, &["--only", "steady", "--rate", "2000", "--json", json.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{fault}: {}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert!(report["faults"][counted].as_u64().unwrap() > 0, "{fault}: {}", report["faults"]);
    }
}

#[test]
fn what_was_measured_is_told_also_if_the_rest_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    // The stub has no sources.
    let output =
        bench(folder.path(), "none", &["--only", "floor,end-to-end,gateway", "--json", json.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("ended before all was measured**: measuring a source") && text.contains("| end to end |"),
        "{text}"
    );
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert!(report["figures"]["end_to_end"]["median"]["delivered"].as_u64().unwrap() > 0);
    assert!(report["ended"].as_str().unwrap().starts_with("measuring a source"), "{}", report["ended"]);
}

#[test]
fn a_missing_server_is_named_with_what_to_do() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_postrider-bench")).args(["--server", "/nowhere/postrider"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(text.contains("/nowhere/postrider") && text.contains("cargo build --release"), "{text}");
}

fn bench(folder: &Path, fault: &str, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_postrider-bench"))
        .arg("--server")
        .arg(stub())
        .arg("--dir")
        .arg(folder)
        .args(["--runs", "1", "--seconds", "1", "--patience-seconds", "1"])
        .args(more)
        .env("STUB_FAULT", fault)
        .output()
        .unwrap()
}

/// `cargo test` builds examples too, beside the programs.
fn stub() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_postrider-bench")).with_file_name("examples").join("stub-server")
}
