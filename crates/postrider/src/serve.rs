//! Placeholder until the server is merged.

use crate::config::Settings;

/// Runs the server until a signal ends it.
pub async fn run(_settings: Settings) -> anyhow::Result<()> {
    anyhow::bail!("the server is not part of this build yet")
}
