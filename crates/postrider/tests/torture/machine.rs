//! What a test does to the machine under a server.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// A file system in memory of so many KiB, on a folder. Dropped, it is taken away.
pub struct Disk {
    place: PathBuf,
}

impl Disk {
    /// The error says why it cannot be had: only root may, and not in every container.
    pub fn mount(place: &Path, kibibytes: u64) -> Result<Self, String> {
        run(
            "mount",
            &["-t", "tmpfs", "-o", &format!("size={kibibytes}k,mode=700"), "tmpfs", &place.display().to_string()],
        )?;
        Ok(Self { place: place.to_owned() })
    }

    /// From now on there is room for everything.
    pub fn grow(&self) {
        self.resize("256m");
    }

    /// Takes away all room but a little.
    pub fn fill(&self) {
        let told = run("df", &["-Pk", &self.place.display().to_string()]).expect("a folder of ours");
        // The second line is of the place, and the third word of it what is used.
        let used = told.lines().nth(1).and_then(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
        // It may grow meanwhile.
        self.resize(&format!("{}k", used.expect("a number") + 1_000));
    }

    fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        run("mount", &["-o", &options, &self.place.display().to_string()]).expect("a file system of ours");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: whoever still has a file open there is about to be killed. A panic here would hide the first one.
        let _ = run("umount", &["-l", &self.place.display().to_string()]);
    }
}

/// A program that lets the n-th of these system calls fail, or kill. It steps aside: the process that is started is the
/// server's own.
pub fn injecting(calls: &str, what: &str, when: &str) -> Vec<String> {
    // Without --seccomp-bpf, which would be quicker: with it, strace 6.1 lets calls fail and never sends the signal.
    let words = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e"];
    let mut words: Vec<String> = words.map(str::to_owned).to_vec();
    words.push(format!("trace={calls}"));
    words.push("-e".to_owned());
    words.push(format!("inject={calls}:{what}:when={when}"));
    words
}

/// The error says why not.
pub fn faults_can_be_injected() -> Result<(), String> {
    let told = run("strace", &["-f", "-qq", "-o", "/dev/null", "true"]);
    told.map(drop).map_err(|why| format!("strace is not there or may not trace: {why}"))
}

/// For what cannot be tried on this machine. Panics unless that is allowed: nobody reads the words of a test that passes, and
/// what was never tried would be taken for sound.
pub fn skip(why: &str) {
    let may_skip = env::var("MAY_SKIP").is_ok_and(|value| value == "1");
    assert!(may_skip, "{why}. With MAY_SKIP=1 in the environment what cannot be tried is skipped.");
    println!("SKIPPED: {why}");
}

fn run(program: &str, words: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(words).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

/// A library that tells whoever is started with it another time than it is, where Debian's packages put it.
pub fn interposed_clock() -> String {
    format!("/usr/lib/{}-linux-gnu/faketime/libfaketime.so.1", env::consts::ARCH)
}
