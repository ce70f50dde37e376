//! What a test does to the machine under a server.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};
use tempfile::NamedTempFile;

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

/// Lets the n-th of some system calls fail, or kill, in each thread on its own, and keeps a list of what failed.
pub struct Injection {
    words: Vec<String>,
    list: NamedTempFile,
    tracer: Option<Child>,
}

impl Injection {
    pub fn new(calls: &str, what: &str, when: &str) -> Self {
        let list = NamedTempFile::new().expect("a file of ours");
        // Without --seccomp-bpf, which would be quicker: with it, strace 6.1 lets calls fail and never sends the signal.
        let words = ["-f", "-qq", "-e", "status=failed", "-e", "signal=none", "-o"].map(str::to_owned);
        let mut words = words.to_vec();
        words.push(list.path().display().to_string());
        words.extend(["-e".to_owned(), format!("trace={calls}")]);
        words.extend(["-e".to_owned(), format!("inject={calls}:{what}:when={when}")]);
        Self { words, list, tracer: None }
    }

    /// The program that starts a server so. It steps aside: the process that is started is the server's own.
    pub fn wrapper(&self) -> Vec<&str> {
        ["strace", "-D"].into_iter().chain(self.words.iter().map(String::as_str)).collect()
    }

    /// From now on, in a process that runs.
    pub fn attach(&mut self, pid: u32) {
        let mut strace = Command::new("strace");
        strace.args(&self.words).args(["-p", &pid.to_string()]).stdin(Stdio::null());
        self.tracer = Some(strace.spawn().expect("it was there before"));
    }

    /// How many calls it let fail. A signal that it sent is not among them.
    pub fn fired(&self) -> usize {
        fs::read_to_string(self.list.path()).unwrap_or_default().matches("(INJECTED)").count()
    }
}

impl Drop for Injection {
    fn drop(&mut self) {
        // It ends with the process that it watched; if the test did not get so far, now. A panic would hide the first one.
        if let Some(tracer) = &mut self.tracer {
            let _ = tracer.kill();
            let _ = tracer.wait();
        }
    }
}

/// The error says why not.
pub fn faults_can_be_injected() -> Result<(), String> {
    let told = run("strace", &["-f", "-qq", "-o", "/dev/null", "true"]);
    told.map(drop).map_err(|why| format!("strace is not there or may not trace: {why}"))
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
