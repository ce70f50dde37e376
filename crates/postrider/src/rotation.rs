//! Changes the key that seals secrets, while the server runs.
//!
//! A new key is put into the file, before the old one (`postrider keys rotate`). From then on it seals what is new, and what
//! there is is sealed again, an endpoint at a time, each in a write of its own. Whether all of it is done says the note by
//! which a database knows its keys: it comes last. So a server that is killed goes on where it was, and one that is not
//! sure looks at every box again, and changes those that need it.

use crate::{
    deployment::{VAULT_CHECK, seal_nothing},
    directory::Directory,
    keyring::{Keyring, KeyringError},
    vault::Vault,
};
use postrider_engine::{AppKey, EndpointKey};
use postrider_store::{Application, By, Cut, Endpoint, Expect, Order, Page, PutError, Store};
use rand::CryptoRng;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};
use tracing::{error, info, warn};

pub struct Rotation {
    /// `None`: the keys come from the settings, and change with the next start.
    pub folder: Option<PathBuf>,
    pub vault: Arc<Vault>,
    pub store: Arc<dyn Store>,
    pub directory: Arc<Directory>,
}

impl Rotation {
    /// For as long as the server runs.
    pub async fn keep(self, mut rng: impl CryptoRng) {
        let mut seen = self.changed_at();
        loop {
            let now = self.changed_at();
            if now != seen {
                seen = now;
                self.take_over();
            }
            if self.store.leads()
                && let Err(fault) = self.reseal_if_needed(&mut rng).await
            {
                warn!(
                    error = format!("{fault:#}"),
                    "not everything could be sealed with the new key yet; trying again"
                );
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    fn changed_at(&self) -> Option<SystemTime> {
        let file = self.folder.as_ref()?.join(Keyring::FILE);
        fs::metadata(file).and_then(|file| file.modified()).ok()
    }

    fn take_over(&self) {
        let Some(folder) = &self.folder else { return };
        match read_keys(folder) {
            Ok(keys) => {
                self.vault.set_keys(&keys);
                // What could not be opened with the old ones may be with these.
                self.directory.forget_all();
                info!(keys = keys.len(), "other encryption keys were taken over");
            }
            Err(fault) => error!(error = %fault, "the keys have changed and cannot be read; the old ones are kept"),
        }
    }

    async fn reseal_if_needed(&self, rng: &mut impl CryptoRng) -> anyhow::Result<()> {
        let noted = self.store.note(VAULT_CHECK).await?;
        if noted.is_some_and(|sealed| self.vault.is_current(&sealed)) {
            return Ok(());
        }
        let resealed = self.reseal_all(rng).await?;
        self.store.put_note(VAULT_CHECK, seal_nothing(&self.vault)?).await?;
        info!(
            endpoints = resealed,
            "everything is sealed with the current key; `postrider keys forget-old` drops the others"
        );
        Ok(())
    }

    async fn reseal_all(&self, rng: &mut impl CryptoRng) -> anyhow::Result<u64> {
        let mut resealed = 0;
        let mut after_app: Option<AppKey> = None;
        loop {
            let apps = self.store.applications(page(after_app)).await?;
            let Some(last) = apps.last() else { return Ok(resealed) };
            after_app = Some(last.key);
            for app in apps.iter().filter(|app| app.source.as_ref().is_some_and(|it| !self.vault.is_current(it))) {
                resealed += u64::from(self.reseal_source(app.clone(), rng).await?);
            }
            for app in apps.iter().map(|app| app.key) {
                let mut after: Option<EndpointKey> = None;
                loop {
                    let endpoints = self.store.endpoints(app, page(after)).await?;
                    let Some(last) = endpoints.last() else { break };
                    after = Some(last.key);
                    for endpoint in endpoints.into_iter().filter(|endpoint| !self.vault.is_current(&endpoint.sealed)) {
                        resealed += u64::from(self.reseal(endpoint, rng).await?);
                    }
                }
            }
        }
    }

    /// False if there was nothing to do any more.
    async fn reseal_source(&self, mut app: Application, rng: &mut impl CryptoRng) -> anyhow::Result<bool> {
        loop {
            let Some(sealed) = app.source.as_ref().filter(|sealed| !self.vault.is_current(sealed)) else {
                return Ok(false);
            };
            let plain = self.vault.open_source(app.key, sealed)?;
            let source = Some(self.vault.seal_source(app.key, &plain, rng));
            let (version, expected) = (app.version + 1, Expect::Version(app.version));
            match self.store.put_application(Application { source, version, ..app.clone() }, expected, None).await {
                Ok(()) => {
                    self.directory.changed(app.key);
                    return Ok(true);
                }
                Err(PutError::Changed) => match self.store.application(By::Key(app.key)).await? {
                    Some(found) => app = found,
                    None => return Ok(false),
                },
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// False if there was nothing to do any more.
    async fn reseal(&self, mut endpoint: Endpoint, rng: &mut impl CryptoRng) -> anyhow::Result<bool> {
        loop {
            let (app, key) = (endpoint.app, endpoint.key);
            let private = self.vault.open(key, &endpoint.sealed)?;
            let sealed = self.vault.seal(key, &private, rng);
            let (version, expected) = (endpoint.version + 1, Expect::Version(endpoint.version));
            match self.store.put_endpoint(Endpoint { sealed, version, ..endpoint.clone() }, expected, None).await {
                Ok(()) => {
                    self.directory.changed(app);
                    return Ok(true);
                }
                // Someone changed it meanwhile, and then sealed it, or it is gone.
                Err(PutError::Changed) => match self.store.endpoint(app, By::Key(key)).await? {
                    Some(found) if !self.vault.is_current(&found.sealed) => endpoint = found,
                    Some(_) | None => return Ok(false),
                },
                Err(fault) => return Err(fault.into()),
            }
        }
    }
}

fn read_keys(folder: &Path) -> Result<Vec<[u8; 32]>, KeyringError> {
    Keyring::open(folder).map(|keyring| keyring.encryption().to_vec())
}

fn page<K>(after: Option<K>) -> Page<K> {
    Page { from: after.map(Cut::Past), order: Order::Ascending, limit: PAGE }
}

const LOOK_AGAIN: Duration = Duration::from_secs(10);
const PAGE: usize = 100;
