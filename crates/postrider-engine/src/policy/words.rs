//! Times in words, for the sentences that people read.

use std::{fmt, time::Duration};

/// `90 min` as "1 h 30 min"; at most the two largest units that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spelt(pub Duration);

impl fmt::Display for Spelt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let Some(largest) = UNITS.iter().position(|(_, unit)| millis >= *unit) else { return f.write_str("0 s") };
        let (name, unit) = UNITS[largest];
        write!(f, "{} {name}", millis / unit)?;
        // Only its neighbour: nobody asks for the seconds of a wait of days.
        match UNITS.get(largest + 1).map(|(name, smaller)| (name, millis % unit / smaller)) {
            Some((name, count)) if count > 0 => write!(f, " {count} {name}"),
            Some(_) | None => Ok(()),
        }
    }
}

const UNITS: [(&str, u128); 5] = [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spelt_with_two_units_at_most() {
        for (millis, expected) in [
            (0, "0 s"),
            (1, "1 ms"),
            (1_500, "1 s 500 ms"),
            (15_000, "15 s"),
            (90 * 60_000, "1 h 30 min"),
            (86_400_000, "1 d"),
            (86_400_001, "1 d"),
            (96 * 3_600_000, "4 d"),
            (75 * 3_600_000 + 35 * 60_000 + 5_000, "3 d 3 h"),
        ] {
            assert_eq!(Spelt(Duration::from_millis(millis)).to_string(), expected);
        }
        assert!(!Spelt(Duration::MAX).to_string().is_empty());
    }
}
