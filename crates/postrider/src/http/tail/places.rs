//! How many tails may be open, in all and of one application.

use postrider_engine::AppKey;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

#[derive(Clone, Default)]
pub struct Places(Arc<Mutex<HashMap<AppKey, usize>>>);

/// Given back when it is dropped.
pub struct Place {
    places: Places,
    app: AppKey,
}

impl Places {
    /// `None` if there is none left.
    pub fn take(&self, app: AppKey) -> Option<Place> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (in_all, of_app) = (open.values().sum::<usize>(), open.get(&app).copied().unwrap_or(0));
        if in_all >= TAILS_MAX || of_app >= TAILS_OF_APPLICATION_MAX {
            return None;
        }
        *open.entry(app).or_default() += 1;
        Some(Place { places: self.clone(), app })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.app) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.app);
            }
        }
    }
}

const TAILS_MAX: usize = 64;
/// So that one customer's portal does not take all of them.
const TAILS_OF_APPLICATION_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_has_its_share_and_all_together_have_theirs() {
        let places = Places::default();
        let mut held = Vec::new();
        for app in 0..4 {
            let app = AppKey::new(app);
            for _ in 0..TAILS_OF_APPLICATION_MAX {
                held.push(places.take(app).expect("a place"));
            }
            assert!(places.take(app).is_none(), "of one application");
        }
        assert_eq!(held.len(), TAILS_MAX);
        assert!(places.take(AppKey::new(9)).is_none(), "in all");
        held.pop();
        assert!(places.take(AppKey::new(9)).is_some(), "a place was given back");
        drop(held);
        assert!(places.0.lock().unwrap().is_empty());
    }
}
