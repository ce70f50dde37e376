//! What a server that is broken into can still reach on its machine.

mod support;

use postrider::config::Settings;
use postrider::confine::{Confinement, confine};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use support::skip::skip;

#[test]
fn a_confined_process_has_its_folder_and_no_other() {
    let (own, others) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(others.path().join("secret"), "of another service").unwrap();
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "within", "--ignored", "--nocapture"])
        .env(OWN, own.path())
        .env(OTHERS, others.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    if said.contains(NOT_HERE) {
        return skip("this kernel has no Landlock");
    }
    assert!(said.contains(HELD), "{said}");
    assert!(own.path().join("data").exists(), "what it wrote is there");
}

#[ignore = "the inner part of a_confined_process_has_its_folder_and_no_other, which starts it"]
#[test]
fn within() {
    let (Some(own), Some(others)) = (std::env::var_os(OWN), std::env::var_os(OTHERS)) else { return };
    let (own, others) = (PathBuf::from(own), PathBuf::from(others));
    let settings = Settings { data: own.clone(), ..Settings::defaults() };
    if confine(&settings).unwrap() == Confinement::None {
        println!("{NOT_HERE}");
        return;
    }
    // Threads that are begun later are held, too.
    std::thread::spawn(move || {
        fs::write(own.join("draft"), "mine").unwrap();
        fs::rename(own.join("draft"), own.join("data")).unwrap();
        fs::create_dir(own.join("folder")).unwrap();
        assert_eq!(fs::read(own.join("data")).unwrap(), b"mine");
        assert!(!fs::read("/etc/passwd").unwrap().is_empty());

        let denied =
            |outcome: std::io::Result<()>| outcome.map_err(|error| error.kind()) == Err(ErrorKind::PermissionDenied);
        assert!(denied(fs::read(others.join("secret")).map(drop)), "another's file was read");
        assert!(denied(fs::read_dir(&others).map(drop)), "another's folder was listed");
        assert!(denied(fs::write(others.join("planted"), "x")), "another's folder was written");
        assert!(denied(fs::write("/etc/planted", "x")), "the system was written");
        assert!(denied(fs::remove_file(others.join("secret"))), "another's file was removed");
        assert!(denied(Command::new("/bin/true").status().map(drop)), "a program was run");
        let planted = own.join("program");
        fs::write(&planted, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&planted, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(denied(Command::new(&planted).status().map(drop)), "a program of its own was run");
    })
    .join()
    .unwrap();
    println!("{HELD}");
}

const OWN: &str = "POSTRIDER_TEST_OWN";
const OTHERS: &str = "POSTRIDER_TEST_OTHERS";
const HELD: &str = "all of it held";
const NOT_HERE: &str = "no Landlock";
