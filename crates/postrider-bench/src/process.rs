//! What the kernel knows about a process and the machine.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

/// User and system time of all threads of a process, also of those that ended.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    Ok(Stat::of(pid)?.own)
}

/// The same of a process and its children, also of those that ended.
pub fn family_cpu_time(pid: u32) -> Result<Duration> {
    loop {
        let before = Stat::of(pid)?;
        let children: Duration = children(pid)?.iter().map(|child| child.own).sum();
        let after = Stat::of(pid)?;
        // A child that ends in between would be counted twice, or not at all.
        if before.ended_children == after.ended_children {
            return Ok(after.own + after.ended_children + children);
        }
    }
}

fn children(pid: u32) -> Result<Vec<Stat>> {
    let processes = fs::read_dir("/proc").context("looking for processes")?.flatten();
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    // Whatever has ended meanwhile is found out by the caller.
    Ok(pids.filter_map(|pid| Stat::of(pid).ok()).filter(|stat| stat.parent == pid).collect())
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    own: Duration,
    /// Of children that it has waited for.
    ended_children: Duration,
}

impl Stat {
    fn of(pid: u32) -> Result<Stat> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))
            .with_context(|| format!("reading the CPU time of process {pid}"))?;
        Stat::parse(&text).with_context(|| format!("understanding /proc/{pid}/stat"))
    }

    fn parse(text: &str) -> Option<Stat> {
        // The command's name is in brackets and may hold anything, brackets and spaces included.
        let (_, after_name) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
        let time = |user, system| Some(Duration::from_millis((ticks(user)? + ticks(system)?) * TICK_MS));
        Some(Stat { parent: fields.get(1)?.parse().ok()?, own: time(11, 12)?, ended_children: time(13, 14)? })
    }
}

/// Linux reports to user space in hundredths of a second on every architecture that we build for.
const TICK_MS: u64 = 10;

/// What a process uses while it has nothing to do, since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rest {
    pub cpu: Duration,
    /// Each time that a thread had waited for something and went on.
    pub wakeups: u64,
}

impl Rest {
    pub fn since(self, before: Rest) -> Rest {
        Rest { cpu: self.cpu.saturating_sub(before.cpu), wakeups: self.wakeups.saturating_sub(before.wakeups) }
    }
}

impl std::iter::Sum for Rest {
    fn sum<I: Iterator<Item = Rest>>(all: I) -> Rest {
        all.fold(Rest::default(), |sum, one| Rest { cpu: sum.cpu + one.cpu, wakeups: sum.wakeups + one.wakeups })
    }
}

/// By the scheduler's own account, in nanoseconds where it keeps one: in steps of a hundredth of a second, rest would mostly
/// be nothing at all. Of threads that live.
pub fn at_rest(pid: u32) -> Result<Rest> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("looking at process {pid}"))?;
    let (mut sum, mut is_exact) = (Rest::default(), true);
    for task in tasks.flatten() {
        let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        sum.wakeups += wakeups(&read("status")).unwrap_or(0);
        match read("schedstat").split_whitespace().next().and_then(|running| running.parse().ok()) {
            Some(running) => sum.cpu += Duration::from_nanos(running),
            None => is_exact = false,
        }
    }
    if !is_exact {
        sum.cpu = cpu_time(pid)?;
    }
    Ok(sum)
}

fn wakeups(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

/// Of all files in it.
pub fn folder_size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("looking into {}", folder.display()))? {
        let entry = entry?;
        let about = entry.metadata()?;
        bytes += if about.is_dir() { folder_size(&entry.path())? } else { about.len() };
    }
    Ok(bytes)
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Memory {
    pub rss_mib: f64,
    pub rss_peak_mib: f64,
}

pub fn memory(pid: u32) -> Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("reading the memory of process {pid}"))?;
    let mib =
        |key| kib(&status, key).map(|kib| kib / 1024.0).with_context(|| format!("finding {key} in /proc/{pid}/status"));
    Ok(Memory { rss_mib: mib("VmRSS:")?, rss_peak_mib: mib("VmHWM:")? })
}

fn kib(text: &str, key: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(key))?.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// What a figure means nothing without.
#[derive(Debug, Serialize)]
pub struct Machine {
    pub date: String,
    pub cores: usize,
    pub cpu: String,
    pub memory_mib: f64,
    pub kernel: String,
    pub data_filesystem: String,
    /// Before the first measurement: others at work on the same cores.
    pub load_average: String,
}

impl Machine {
    pub fn observe(data: &Path) -> Machine {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpu = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned()));
        Machine {
            date: crate::clock::date(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: cpu.unwrap_or_else(|| "unknown".to_owned()),
            memory_mib: kib(&read("/proc/meminfo"), "MemTotal:").unwrap_or_default() / 1024.0,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            data_filesystem: filesystem(&read("/proc/mounts"), data).unwrap_or("unknown").to_owned(),
            load_average: read("/proc/loadavg").trim().to_owned(),
        }
    }
}

fn filesystem<'a>(mounts: &'a str, folder: &Path) -> Option<&'a str> {
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    fields.filter(|(mount, _)| folder.starts_with(mount)).max_by_key(|(mount, _)| mount.len()).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 900 0 0 0 170 30 5 2 20 0 4 0 100 1000 200";
        let expected = Stat { parent: 1, own: Duration::from_millis(2000), ended_children: Duration::from_millis(70) };
        assert_eq!(Stat::parse(stat), Some(expected));
    }

    #[test]
    fn a_family_is_a_process_with_its_children() {
        let me = std::process::id();
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let found = children(me).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!found.is_empty() && found.iter().all(|child| child.parent == me), "{found:?}");
        assert!(family_cpu_time(me).unwrap() >= cpu_time(me).unwrap().saturating_sub(Duration::from_millis(TICK_MS)));
    }

    #[test]
    fn waking_up_is_counted_in_all_threads() {
        assert_eq!(wakeups("Name:\tx\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t9\n"), Some(7));
        let before = at_rest(std::process::id()).unwrap();
        let sleeper = std::thread::spawn(|| std::thread::sleep(Duration::from_millis(20)));
        std::thread::sleep(Duration::from_millis(5));
        sleeper.join().unwrap();
        assert!(at_rest(std::process::id()).unwrap().since(before).wakeups > 0);
    }

    #[test]
    fn memory_is_read_in_its_own_unit() {
        assert_eq!(kib("VmPeak:\t 9 kB\nVmHWM:\t   40960 kB\n", "VmHWM:"), Some(40960.0));
    }

    #[test]
    fn a_folder_is_on_its_nearest_mount() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n";
        assert_eq!(filesystem(mounts, Path::new("/tmp/x")), Some("tmpfs"));
        assert_eq!(filesystem(mounts, Path::new("/tmpx")), Some("ext4"));
    }
}
