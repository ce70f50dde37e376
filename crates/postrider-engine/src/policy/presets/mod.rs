//! Retry policies of systems that people know, by name.

use super::rules::Layer;

/// A policy by name, with where it was read and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preset {
    pub name: &'static str,
    pub about: &'static str,
    pub source: &'static str,
    /// The day of what it copies, `YYYY-MM-DD`.
    pub dated: &'static str,
    pub layer: Layer,
}

pub fn all() -> &'static [Preset] {
    &[]
}

pub fn find(name: &str) -> Option<&'static Preset> {
    all().iter().find(|preset| preset.name == name)
}
