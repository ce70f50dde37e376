//! The keys and the database of a deployment, which must belong together.
//!
//! Whoever starts with other keys than the database was written with would be locked out of it, and on a database that
//! nodes share he would seal what the others cannot open. So that is found out before anything is served, and before
//! this node joins the others.

use crate::{
    clock,
    config::Settings,
    keyring::Keyring,
    serve::system_rng,
    vault::{Private, Vault},
};
use anyhow::Context;
use postrider_engine::EndpointKey;
use postrider_store::{
    PostgresOptions, PostgresStore, SqliteStore, Store,
    postgres::{self, DatabaseUrl, Visitor},
    sqlite,
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use std::{path::Path, sync::Arc};

pub struct Deployment {
    pub keyring: Keyring,
    pub vault: Arc<Vault>,
    pub store: Arc<dyn Store>,
}

impl Deployment {
    pub async fn open(settings: &Settings) -> anyhow::Result<Self> {
        for outbox in &settings.outboxes {
            read_ca(outbox.ca_file.as_deref())?;
        }
        match &settings.database_url {
            None => Self::open_alone(settings).await,
            Some(url) => Self::open_shared(settings, url).await,
        }
    }

    async fn open_alone(settings: &Settings) -> anyhow::Result<Self> {
        // Keys before data: a database without its keys is refused, so that nobody is locked out of it.
        let keyring = keys_in(settings)?;
        let data = settings.data.clone();
        let store = tokio::task::spawn_blocking(move || SqliteStore::open(&data, clock::now())).await??;
        let vault = Arc::new(Vault::new(keyring.encryption()));
        match store.note(VAULT_CHECK).await? {
            Some(sealed) => check(&vault, &sealed)?,
            None => store.put_note(VAULT_CHECK, seal_nothing(&vault)?).await?,
        }
        Ok(Self { keyring, vault, store: Arc::new(store) })
    }

    async fn open_shared(settings: &Settings, url: &DatabaseUrl) -> anyhow::Result<Self> {
        let options = postgres_options(settings)?;
        let keyring = keys_of_shared(settings, url, &options).await?;
        // One that was moved is left over, as it should be.
        if settings.data.join(SqliteStore::FILE).exists() && !sqlite::was_moved(&settings.data).unwrap_or(false) {
            let folder = settings.data.display().to_string();
            tracing::warn!(
                folder,
                "the data folder has a database of its own, which is not used; see `postrider move`"
            );
        }
        let vault = Arc::new(Vault::new(keyring.encryption()));
        let visitor = Visitor::connect(url, &options).await?;
        clock::begin_by(visitor.time()).await?;
        let store = PostgresStore::open(url, clock::now(), options).await?;
        Ok(Self { keyring, vault, store: Arc::new(store) })
    }
}

/// How to get to the database of these settings.
pub fn postgres_options(settings: &Settings) -> anyhow::Result<PostgresOptions> {
    let ca_pem = read_ca(settings.database_ca_file.as_deref())?;
    let (name, lease) = (settings.node_name.clone(), settings.lease);
    // So that it takes several lost renewals, not one, to lose the lanes.
    Ok(PostgresOptions { name, ca_pem, lease, heartbeat: lease / 5, ..PostgresOptions::default() })
}

/// The authorities that a database's certificate may be signed by. A file without any is not what was meant.
pub fn read_ca(path: Option<&Path>) -> anyhow::Result<Option<Vec<u8>>> {
    let Some(path) = path else { return Ok(None) };
    let pem = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        certificate.with_context(|| format!("reading the certificates in {}", path.display()))?;
        count += 1;
    }
    anyhow::ensure!(count > 0, "{} has no certificate in it", path.display());
    Ok(Some(pem))
}

/// The keys in the folder, once it is sure that they are those of the database. New ones for a new database.
pub async fn keys_of_shared(
    settings: &Settings,
    url: &DatabaseUrl,
    options: &PostgresOptions,
) -> anyhow::Result<Keyring> {
    let folder = &settings.data;
    let visitor = Visitor::connect(url, options).await?;
    let noted = visitor.note(VAULT_CHECK).await?;
    if noted.is_some() && !folder.join(Keyring::FILE).exists() {
        anyhow::bail!(
            "this database belongs to a deployment whose {} is not in {}; copy it from another node",
            Keyring::FILE,
            folder.display()
        );
    }
    if noted.is_none() {
        // Before the keys, so that who may not write there leaves none behind.
        postgres::migrate(url, options).await?;
    }
    let keyring = keys_in(settings)?;
    let vault = Vault::new(keyring.encryption());
    let sealed = match noted {
        Some(sealed) => sealed,
        None => {
            // Two nodes with keys of their own may both have found it empty. One of them is refused.
            visitor.claim_note(VAULT_CHECK, seal_nothing(&vault)?).await?
        }
    };
    check(&vault, &sealed)?;
    Ok(keyring)
}

fn keys_in(settings: &Settings) -> anyhow::Result<Keyring> {
    let folder = &settings.data;
    let file = folder.join(Keyring::FILE);
    let first_start = !file.exists();
    let keyring = Keyring::open_or_create(folder)?;
    if first_start {
        tracing::info!(file = file.display().to_string(), "made the keys of this deployment; keep a copy of that file");
    }
    Ok(keyring.with_encryption(settings.encryption_keys()))
}

pub fn seal_nothing(vault: &Vault) -> anyhow::Result<Vec<u8>> {
    Ok(vault.seal(NOBODY, &Private::default(), &mut system_rng()?))
}

/// Opens the sealed note to see whether the key fits.
pub fn check(vault: &Vault, sealed: &[u8]) -> anyhow::Result<()> {
    vault.open(NOBODY, sealed).context(
        "the encryption keys (in keys.toml, or as encryption_keys in the settings) are not those that this database was \
         made with; put the right ones back",
    )?;
    Ok(())
}

/// The note that tells which keys a database was written with.
pub const VAULT_CHECK: &str = "vault_check";
const NOBODY: EndpointKey = EndpointKey::new(0);
