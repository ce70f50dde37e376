use std::process::ExitCode;

/// A message is allocated on one thread and freed on another, which the system's allocator pays for dearly.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Every connection in and out is an open file, and the usual limit of 1024 is soon reached. If it cannot be raised
    // the server still works, only with fewer of them.
    let _ = rlimit::increase_nofile_limit(OPEN_FILES);
    postrider::cli::run(std::env::args_os())
}

const OPEN_FILES: u64 = 1 << 20;
