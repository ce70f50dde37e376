//! TLS on our own door, for those who have no proxy in front of it.
//!
//! Certificates are renewed every few weeks by a program that knows nothing of us, so the files are looked at again once a
//! minute. What cannot be used is said once and changes nothing: an old certificate is better than none.

use crate::config::{TlsFiles, readable_by_all};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::{
    fmt, fs, io,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, SystemTime},
};
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

#[derive(Debug, thiserror::Error)]
pub enum TlsFilesError {
    #[error("could not read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} can be read by every user of this machine; run: chmod 640 {}", path.display(), path.display())]
    TooOpen { path: PathBuf },
    #[error("{} holds no certificate in PEM", path.display())]
    NoCertificate { path: PathBuf },
    #[error("{} holds no private key in PEM, or one that is encrypted", path.display())]
    NoKey { path: PathBuf },
    #[error("{} does not belong to {}, or is of a kind that is not supported", key.display(), certificate.display())]
    NotAPair { certificate: PathBuf, key: PathBuf },
}

/// What is shown to whoever connects. Cheap to clone.
#[derive(Clone)]
pub struct Identity {
    files: TlsFiles,
    current: Arc<RwLock<Arc<CertifiedKey>>>,
}

impl Identity {
    pub fn read(files: TlsFiles) -> Result<Self, TlsFilesError> {
        let current = Arc::new(RwLock::new(Arc::new(files.read()?)));
        Ok(Self { files, current })
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .expect("aws-lc-rs has cipher suites for both versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    /// Takes over what is put in the place of the files, for ever.
    pub async fn keep(self) {
        let mut seen = self.files.changed_at();
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            let now = self.files.changed_at();
            if now == seen {
                continue;
            }
            seen = now;
            self.renew();
        }
    }

    fn renew(&self) {
        match self.files.read() {
            Ok(renewed) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(renewed);
                info!("the certificate was renewed");
            }
            Err(error) => {
                let error = anyhow::Error::from(error);
                warn!(error = format!("{error:#}"), "the new certificate cannot be used; the old one is kept");
            }
        }
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.files).finish()
    }
}

impl TlsFiles {
    fn read(&self) -> Result<CertifiedKey, TlsFilesError> {
        let Self { certificate, private_key } = self;
        let open = |path: &PathBuf| fs::read(path).map_err(|source| TlsFilesError::Read { path: path.clone(), source });
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&open(certificate)?)
            .collect::<Result<_, _>>()
            .ok()
            .filter(|chain: &Vec<_>| !chain.is_empty())
            .ok_or_else(|| TlsFilesError::NoCertificate { path: certificate.clone() })?;
        let text = zeroize::Zeroizing::new(open(private_key)?);
        if readable_by_all(private_key).map_err(|source| TlsFilesError::Read { path: private_key.clone(), source })? {
            return Err(TlsFilesError::TooOpen { path: private_key.clone() });
        }
        let key =
            PrivateKeyDer::from_pem_slice(&text).map_err(|_| TlsFilesError::NoKey { path: private_key.clone() })?;
        CertifiedKey::from_der(chain, key, &rustls::crypto::aws_lc_rs::default_provider())
            .map_err(|_| TlsFilesError::NotAPair { certificate: certificate.clone(), key: private_key.clone() })
    }

    fn changed_at(&self) -> [Option<SystemTime>; 2] {
        [&self.certificate, &self.private_key].map(|path| fs::metadata(path).and_then(|file| file.modified()).ok())
    }
}

const LOOK_AGAIN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};
    use std::{os::unix::fs::PermissionsExt, path::Path};

    struct Made {
        certificate: String,
        key: String,
    }

    fn make() -> Made {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        Made { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    fn put(folder: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn what_cannot_be_used_is_refused_for_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (make(), make());
        let certificate = put(folder.path(), "certificate", &one.certificate, 0o644);
        let key = put(folder.path(), "key", &one.key, 0o600);
        let open = put(folder.path(), "open", &one.key, 0o644);
        let others = put(folder.path(), "others", &other.key, 0o600);
        let neither = put(folder.path(), "neither", "nothing", 0o600);
        let read = |certificate: &Path, private_key: &Path| {
            let files = TlsFiles { certificate: certificate.to_owned(), private_key: private_key.to_owned() };
            Identity::read(files)
        };
        assert!(read(&certificate, &key).is_ok());
        assert!(matches!(read(&certificate, &open), Err(TlsFilesError::TooOpen { .. })));
        assert!(matches!(read(&certificate, &others), Err(TlsFilesError::NotAPair { .. })));
        assert!(matches!(read(&neither, &key), Err(TlsFilesError::NoCertificate { .. })));
        assert!(matches!(read(&certificate, &neither), Err(TlsFilesError::NoKey { .. })));
        assert!(matches!(read(&certificate, Path::new("/not/there")), Err(TlsFilesError::Read { .. })));
    }

    #[test]
    fn what_is_put_in_their_place_is_taken_over_if_it_can_be_used() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (make(), make());
        let certificate = put(folder.path(), "certificate", &old.certificate, 0o644);
        let private_key = put(folder.path(), "key", &old.key, 0o600);
        let identity = Identity::read(TlsFiles { certificate, private_key }).unwrap();
        let shown = || identity.current.read().unwrap().cert[0].clone();
        let first = shown();
        put(folder.path(), "certificate", &new.certificate, 0o644);
        identity.renew();
        assert_eq!(shown(), first, "half of a pair is not taken over");
        put(folder.path(), "key", &new.key, 0o600);
        identity.renew();
        assert_ne!(shown(), first);
    }
}
