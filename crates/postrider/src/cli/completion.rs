//! `postrider completion`: what a shell must know to complete our commands.

use super::print::OutputError;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::{self, Write};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider completion bash > /etc/bash_completion.d/postrider
  postrider completion zsh > \"${fpath[1]}/_postrider\"
  postrider completion fish > ~/.config/fish/completions/postrider.fish")]
pub struct Args {
    /// Which shell
    shell: Shell,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "postrider", &mut script);
    let mut out = io::stdout().lock();
    Ok(out.write_all(&script).and_then(|()| out.flush()).map_err(OutputError)?)
}
