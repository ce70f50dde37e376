//! `postrider man`: the manual, made from the same words as the help.

use super::print::{self, OutputError};
use anyhow::Context;
use clap::CommandFactory;
use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider man | man -l -
  postrider man --out /usr/local/share/man/man1")]
pub struct Args {
    /// Write a page for each command to this folder, instead of the first page to standard output
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let command = super::Cli::command();
    match &args.out {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page).context("writing the page")?;
            let mut out = io::stdout().lock();
            out.write_all(&page).and_then(|()| out.flush()).map_err(OutputError)?;
        }
        Some(folder) => {
            fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
            clap_mangen::generate_to(command, folder).with_context(|| format!("writing to {}", folder.display()))?;
            print::tell(&format!("The pages are in {}.", print::escaped_word(&folder.display().to_string(), 4_096)));
        }
    }
    Ok(())
}
