//! The whole benchmark with tiny numbers, on the real server: that it works, and nothing about how fast.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

#[test]
fn loads_are_measured_and_drawn() {
    let run = Run::of(&[
        "--only",
        "floor,end-to-end,fan-out,steady,steady-5000,http2,batches,fan-out-thousand,large-payloads,many-endpoints,idle",
        "--rate-high",
        "400",
        "--fan-out-wide",
        "60",
        "--many-endpoints",
        "200",
    ]);
    for scenario in ["floor", "end_to_end", "fan_out", "steady", "steady_high", "http2", "batches", "fan_out_thousand"]
    {
        let series = &run.report["figures"][scenario];
        assert!(series["median"]["delivered"].as_u64().unwrap() > 0, "{scenario}: {series}");
        let rates = ["least", "median", "greatest"].map(|by| series[by]["delivered_per_s"].as_f64().unwrap());
        assert!(rates.is_sorted() && rates[0] > 0.0, "{scenario}: {rates:?}");
    }
    let figures = &run.report["figures"];
    assert!(figures["large"]["loads"]["median"]["delivered"].as_u64().unwrap() > 0);
    assert!(figures["many_endpoints"]["beside"]["median"]["delivered"].as_u64().unwrap() > 0);
    assert!(figures["idle"]["median"]["wakeups_per_s"].as_f64().is_some());
    assert!(figures["idle"]["median"]["binary_mib"].as_f64().unwrap() > 1.0);
    run.has_rows(&["floor", "end to end", "fan-out 1:60", "HTTP/2 on the way in", "200, 1 % at a time"]);
    run.has_plots(&["rates", "cpu", "latency"]);
}

#[test]
fn growth_is_measured_and_drawn() {
    let run = Run::of(&[
        "--only",
        "growth-endpoints,curve-finished,curve-waiting",
        "--growth-endpoints",
        "200",
        "--curve-finished",
        "0,200",
        "--curve-waiting",
        "0,100",
        "--curve-messages",
        "50",
    ]);
    let figures = &run.report["figures"];
    assert_eq!(figures["growth_endpoints"]["stored"], 200);
    let curves = figures["curves"].as_array().unwrap();
    for (curve, (kind, asked)) in curves.iter().zip([("finished", 200), ("waiting", 100)]) {
        assert_eq!(curve["fill"], kind);
        let point = &curve["points"][1];
        assert!(point["stored"].as_u64().unwrap() >= asked, "{kind}: {point}");
        assert!(point["data_mib"].as_f64().unwrap() > 0.0 && point["lists"].as_array().unwrap().len() > 5);
        assert!(point["beside"]["median"]["delivered"].as_u64().unwrap() > 0, "{kind}: {point}");
    }
    run.has_rows(&["50 messages of an application", "50 dead letters", "endpoints in the store"]);
    run.has_plots(&["curve-finished-cost", "curve-finished-lists", "curve-waiting-start", "curve-waiting-size"]);
}

#[test]
fn bad_endpoints_and_forgetting_are_measured() {
    let clock = format!("/usr/lib/{}-linux-gnu/faketime/libfaketime.so.1", std::env::consts::ARCH);
    let (mut only, mut rows) = ("isolation,isolation-hundred".to_owned(), vec!["10 healthy, steady", "some hang"]);
    if Path::new(&clock).exists() {
        only += ",forgetting";
        rows.push("while forgetting");
    } else {
        println!("skipped: forgetting needs {clock} (apt-get install libfaketime)");
    }
    let run = Run::of(&["--only", &only, "--forgetting", "300"]);
    run.has_rows(&rows);
    let forgetting = &run.report["figures"]["forgetting"];
    if !forgetting.is_null() {
        assert_eq!((&forgetting["some_left"], &forgetting["stored"]), (&Value::Bool(false), &Value::from(300)));
    }
}

#[test]
fn a_node_on_postgresql_is_measured() {
    let run = Run::of(&["--only", "pg-end-to-end"]);
    let median = &run.report["figures"]["postgres"]["one_node"]["median"];
    assert!(median["delivered"].as_u64().unwrap() > 0, "{median}");
    run.has_rows(&["one node"]);
}

struct Run {
    folder: tempfile::TempDir,
    text: String,
    report: Value,
}

impl Run {
    fn of(words: &[&str]) -> Run {
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("figures.json");
        let output = bench(folder.path(), words);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        for fault in ["lost", "duplicated", "misnamed", "damaged"] {
            assert_eq!(report["faults"][fault], 0, "{text}");
        }
        assert!(text.contains("| lost, duplicated, misnamed, damaged: none"), "{text}");
        Run { folder, text, report }
    }

    fn has_rows(&self, names: &[&str]) {
        for name in names {
            assert!(
                self.text.lines().any(|line| line.starts_with('|') && line.contains(name)),
                "{name}:\n{}",
                self.text
            );
        }
    }

    fn has_plots(&self, names: &[&str]) {
        for name in names {
            let path = self.folder.path().join("plots").join(format!("{name}.svg"));
            let svg = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            is_well_formed(&svg).unwrap_or_else(|why| panic!("{name}: {why}\n{svg}"));
            for part in ["<title ", "<desc ", "prefers-color-scheme: dark", "commit"] {
                assert!(svg.contains(part), "{name} has no {part}");
            }
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name} shows what is no number:\n{svg}");
        }
    }
}

fn bench(folder: &Path, words: &[&str]) -> Output {
    let server = server();
    assert!(
        server.is_file(),
        "the benchmark needs the server at {}: run `cargo test --workspace`, which builds it, or `cargo build -p postrider` first",
        server.display()
    );
    Command::new(env!("CARGO_BIN_EXE_postrider-bench"))
        .arg("--server")
        .arg(server)
        .arg("--json")
        .arg(folder.join("figures.json"))
        .arg("--plots")
        .arg(folder.join("plots"))
        .args(["--runs", "1", "--seconds", "0.2", "--hang-seconds", "0.3"])
        .args(words)
        .output()
        .unwrap()
}

/// Another package's program, and so not one that cargo tells us about. It is put beside ours by whatever builds it: all of the
/// workspace's tests, or `cargo build`.
fn server() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_postrider-bench")).with_file_name("postrider")
}

/// Every element ends, and in the right order; no `<` or `&` is where text is.
fn is_well_formed(svg: &str) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = svg;
    while let Some(start) = rest.find('<') {
        let text = &rest[..start];
        let entities = ["&amp;", "&lt;", "&gt;", "&quot;"];
        if text.match_indices('&').any(|(at, _)| !entities.iter().any(|entity| text[at..].starts_with(entity))) {
            return Err(format!("a bare & in {text}"));
        }
        let end = rest[start..].find('>').ok_or("an element that does not end")? + start;
        let element = &rest[start + 1..end];
        if element.matches('"').count() % 2 == 1 || element.contains('<') {
            return Err(format!("<{element}> is torn"));
        }
        if let Some(name) = element.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Err(format!("</{name}> ends nothing"));
            }
        } else if !element.ends_with('/') {
            open.push(element.split_whitespace().next().unwrap_or_default());
        }
        rest = &rest[end + 1..];
    }
    if open.is_empty() { Ok(()) } else { Err(format!("{open:?} did not end")) }
}
