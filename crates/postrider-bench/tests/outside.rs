//! Somebody else's server is measured by the contract alone, and left as it was; what stands in the way is said.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// It has neither metrics nor any route but the contract's.
#[test]
fn any_server_that_speaks_the_contract_is_measured_and_left_as_it_was() {
    let stub = Stub::start();
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    let pid = stub.child.id().to_string();
    let all = "floor,end-to-end,fan-out,steady,steady-5000";
    for (only, pid, has_cost) in [(all, vec![], false), ("floor,end-to-end", vec!["--pid", &pid], true)] {
        let mut words = vec!["--url", &stub.url, "--token", "stub-token", "--json", json.to_str().unwrap()];
        words.extend(["--only", only, "--rate-high", "500"]);
        words.extend(pid);
        let output = bench(&words);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(text.contains("RSS peak"), has_cost, "{text}");
        assert!(text.contains("end to end / floor") && !text.contains("not measured"), "{text}");
        let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let median = &report["figures"]["end_to_end"]["median"];
        assert!(median["delivered"].as_u64().unwrap() > 0, "{median}");
        assert_eq!(median["cpu_us_per_delivery"].is_number(), has_cost, "{median}");
        assert_eq!(report["faults"]["lost"], 0);
        assert!(stub.get("/api/v1/app/count").ends_with("{\"count\":0}"), "applications were left behind");
    }
}

#[test]
fn what_stands_in_the_way_is_said() {
    let stub = Stub::start();
    let nobody = {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let gone = {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id().to_string()
    };
    let url = stub.url.as_str();
    for (words, expected) in [
        (vec!["--url", url, "--token", "wrong"], "does not take this token"),
        (vec!["--url", url], "--url needs --token"),
        (vec!["--url", &nobody, "--token", "stub-token"], "no server answers at"),
        (vec!["--url", "https://127.0.0.1:1", "--token", "t"], "does not begin with http://"),
        (vec!["--url", "http://127.0.0.1:1/api/v1", "--token", "t"], "has a path"),
        (vec!["--url", "nonsense:", "--token", "t"], "(--url)"),
        (vec!["--url", url, "--token", "stub-token", "--pid", &gone], "there is no process"),
        (vec!["--url", url, "--token", "stub-token", "--only", "growth-finished"], "needs a server of its own"),
        (vec!["--url", url, "--token", "stub-token", "--store", "both"], "cannot be used with"),
    ] {
        let output = bench(&words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(expected), "{words:?}: {text}");
    }
}

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_postrider-bench"))
        .args(["--runs", "1", "--seconds", "0.3", "--patience-seconds", "5"])
        .args(words)
        .env_remove("POSTRIDER_TOKEN")
        .output()
        .unwrap()
}

struct Stub {
    child: Child,
    address: SocketAddr,
    url: String,
}

impl Stub {
    fn start() -> Stub {
        let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
        let child = Command::new(program())
            .args(["serve", "--listen", &address.to_string()])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let stub = Stub { child, address, url: format!("http://{address}") };
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(start.elapsed() < Duration::from_secs(10), "the stub does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        stub
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: stub\r\nauthorization: Bearer stub-token\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `cargo test` builds examples too, beside the programs.
fn program() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_postrider-bench")).with_file_name("examples").join("stub-server")
}
