//! Shuts the file system to the server but for what it needs: its own folder, and what programs read of a system.
//!
//! Whoever gets in by way of us then finds neither homes nor other services' data, and can run nothing. The kernel does it
//! (Landlock), for the threads that are begun from then on: so this comes before all others. A kernel that does not have it
//! leaves it at that; systemd's unit does the same by other means.

use crate::config::Settings;
use anyhow::Context;
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    path_beneath_rules,
};
use std::path::{Path, PathBuf};

/// How far it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    Whole,
    /// The kernel knows only some of it.
    Partial,
    /// The kernel does not have it.
    None,
}

/// For the whole life of the process. The data folder must be there.
pub fn confine(settings: &Settings) -> anyhow::Result<Confinement> {
    let abi = ABI::V5;
    let may_read = AccessFs::ReadFile | AccessFs::ReadDir;
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.add_rules(path_beneath_rules([&settings.data], own(abi))))
        .and_then(|rules| rules.add_rules(path_beneath_rules(["/dev/null"], may_read | AccessFs::WriteFile)))
        .and_then(|rules| rules.add_rules(path_beneath_rules(read(settings), may_read)))
        .and_then(|rules| rules.restrict_self())
        .context("shutting the file system")?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Confinement::Whole,
        RulesetStatus::PartiallyEnforced => Confinement::Partial,
        RulesetStatus::NotEnforced => Confinement::None,
    })
}

/// All but to run something.
fn own(abi: ABI) -> landlock::BitFlags<AccessFs> {
    AccessFs::from_all(abi) & !AccessFs::Execute
}

/// What is read after the start: names and name servers, libraries that look names up, time zones, how this process fares;
/// certificates, which are renewed.
fn read(settings: &Settings) -> Vec<PathBuf> {
    let system = ["/etc", "/usr/lib", "/usr/lib64", "/usr/share", "/lib", "/lib64", "/proc", "/sys", "/dev/urandom"];
    let resolvers = ["/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager"];
    let tls = settings.tls.iter().flat_map(|tls| [&tls.certificate, &tls.private_key]);
    // They are renewed by putting others in their place.
    let tls = tls
        .filter_map(|file| file.parent())
        .map(|folder| if folder == Path::new("") { Path::new(".") } else { folder });
    let certificates = settings.outboxes.iter().filter_map(|outbox| outbox.ca_file.as_ref());
    let named = [&settings.database_ca_file, &settings.extra_ca_file].into_iter().flatten().chain(certificates);
    let tokens = settings.tokens.key_files();
    system
        .into_iter()
        .chain(resolvers)
        .map(PathBuf::from)
        .chain(tls.map(Path::to_owned))
        .chain(named.cloned())
        .chain(tokens.into_iter().map(Path::to_owned))
        .collect()
}
