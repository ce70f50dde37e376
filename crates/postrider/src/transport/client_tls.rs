//! What the owner of an endpoint brings along for TLS: a certificate by which the receiver knows us, and the authorities
//! that the receiver's own certificate must come from.
//!
//! All of it is judged when it is set, so that its owner hears of a mistake at once and not from a delivery. What is stored
//! is read again when it is needed, and whatever cannot be read then is an error: an endpoint that wants to know who calls
//! is never called by nobody.

use postrider_engine::Timestamp;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::{self, PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{InconsistentKeys, RootCertStore};
use sha2::{Digest, Sha256};
use std::fmt::{self, Write as _};
use std::sync::{Arc, OnceLock};
use tokio_rustls::TlsConnector;
use x509_parser::certificate::X509Certificate;

/// Ready to connect with. What it needs of the connector is made when it is first used.
pub struct ClientTls {
    certified: Option<Arc<CertifiedKey>>,
    roots: Option<Arc<RootCertStore>>,
    mark: Box<str>,
    connector: OnceLock<TlsConnector>,
}

/// What a certificate says about itself. Nothing of it is secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    pub subject: String,
    pub issuer: String,
    pub serial: String,
    /// Of the whole certificate: SHA-256, in hex.
    pub fingerprint: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

/// Says nothing of what it found: a private key may be among it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientTlsError {
    #[error("it is longer than {PEM_MAX} characters")]
    TooLong,
    #[error("it is not PEM; write it as -----BEGIN CERTIFICATE----- and so on, with its line breaks")]
    NotPem,
    #[error("it holds a private key that is encrypted; decrypt it first")]
    EncryptedKey,
    #[error("it holds something that is neither a certificate nor a private key")]
    Junk,
    #[error("it holds no private key; put the key and the certificate into one text")]
    NoKey,
    #[error("it holds more than one private key")]
    SeveralKeys,
    #[error("it holds a private key, which does not belong there")]
    KeyAmongAuthorities,
    #[error("it holds no certificate")]
    NoCertificate,
    #[error("it holds more than {CHAIN_MAX} certificates")]
    TooManyCertificates,
    #[error("certificate {0} cannot be read")]
    Unreadable(usize),
    #[error("the private key does not belong to the first certificate")]
    NotAPair,
    #[error("the private key is damaged, or of a kind that is not supported")]
    UnusableKey,
    #[error("certificate {0} was not issued by the one after it; put each before its issuer, and nothing else there")]
    BrokenChain(usize),
    #[error("certificate {0} has expired")]
    Expired(usize),
    #[error("certificate {0} is not valid yet")]
    NotYetValid(usize),
    #[error("certificate {0} cannot be used as an authority")]
    NotAnAuthority(usize),
}

impl ClientTls {
    /// Of a certificate and its key, and of authorities. `None`: we show nothing, or trust those that we always trust.
    pub fn load(identity: Option<&str>, authorities: Option<&str>) -> Result<Self, (Part, ClientTlsError)> {
        let certified = identity.map(certified).transpose().map_err(|flaw| (Part::Identity, flaw))?;
        let roots = authorities.map(roots).transpose().map_err(|flaw| (Part::Authorities, flaw))?;
        let mut hash = Sha256::new_with_prefix(b"postrider client tls");
        for text in [identity, authorities] {
            hash.update([u8::from(text.is_some())]);
            hash.update(Sha256::digest(text.unwrap_or_default()));
        }
        let mark = hex(&hash.finalize()).into();
        Ok(Self { certified, roots, mark, connector: OnceLock::new() })
    }

    /// Which connections were made with the same: these may be shared, and no others.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    pub(super) fn connector(&self, make: impl FnOnce(&Self) -> TlsConnector) -> &TlsConnector {
        self.connector.get_or_init(|| make(self))
    }

    /// The authorities that are trusted in place of the usual ones.
    pub(super) fn roots(&self) -> Option<&Arc<RootCertStore>> {
        self.roots.as_ref()
    }

    pub(super) fn resolver(&self) -> Option<Arc<dyn ResolvesClientCert>> {
        let certified = CertifiedKey::clone(self.certified.as_ref()?);
        Some(Arc::new(SingleCertAndKey::from(certified)))
    }
}

/// Which of the two texts is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Identity,
    Authorities,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientTls(certificate: {}, authorities: {})", self.certified.is_some(), self.roots.is_some())
    }
}

/// What the certificates in a text say, in their order.
pub fn facts(text: &str) -> Result<Vec<CertificateFacts>, ClientTlsError> {
    let certificates = read(text)?.certificates;
    certificates.iter().enumerate().map(|(at, der)| CertificateFacts::of(der, at)).collect()
}

/// Whether all certificates in a text hold now.
pub fn check_times(text: &str, now: Timestamp) -> Result<(), ClientTlsError> {
    for (at, facts) in facts(text)?.iter().enumerate() {
        if facts.not_after <= now {
            return Err(ClientTlsError::Expired(at + 1));
        }
        if now < facts.not_before {
            return Err(ClientTlsError::NotYetValid(at + 1));
        }
    }
    Ok(())
}

impl CertificateFacts {
    fn of(der: &CertificateDer<'_>, at: usize) -> Result<Self, ClientTlsError> {
        let certificate = parse(der, at)?;
        let validity = certificate.validity();
        let millis = |seconds: i64| Timestamp::from_millis(seconds.saturating_mul(1_000));
        Ok(Self {
            subject: shown(&certificate.subject().to_string()),
            issuer: shown(&certificate.issuer().to_string()),
            serial: hex(certificate.raw_serial()),
            fingerprint: hex(&Sha256::digest(der)),
            not_before: millis(validity.not_before.timestamp()),
            not_after: millis(validity.not_after.timestamp()),
        })
    }
}

/// What a text in PEM holds.
struct Inside {
    certificates: Vec<CertificateDer<'static>>,
    keys: Vec<PrivateKeyDer<'static>>,
}

fn read(text: &str) -> Result<Inside, ClientTlsError> {
    if text.len() > PEM_MAX {
        return Err(ClientTlsError::TooLong);
    }
    if text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") || text.contains("Proc-Type: 4,ENCRYPTED") {
        return Err(ClientTlsError::EncryptedKey);
    }
    let mut inside = Inside { certificates: Vec::new(), keys: Vec::new() };
    for section in <(SectionKind, Vec<u8>) as PemObject>::pem_slice_iter(text.as_bytes()) {
        match section.map_err(|_: pem::Error| ClientTlsError::NotPem)? {
            (SectionKind::Certificate, der) => inside.certificates.push(der.into()),
            (SectionKind::PrivateKey, der) => inside.keys.push(PrivateKeyDer::Pkcs8(der.into())),
            (SectionKind::RsaPrivateKey, der) => inside.keys.push(PrivateKeyDer::Pkcs1(der.into())),
            (SectionKind::EcPrivateKey, der) => inside.keys.push(PrivateKeyDer::Sec1(der.into())),
            _ => return Err(ClientTlsError::Junk),
        }
    }
    let begun = text.matches("-----BEGIN ").count();
    match inside.certificates.len() + inside.keys.len() {
        0 if begun == 0 => Err(ClientTlsError::NotPem),
        found if found != begun => Err(ClientTlsError::Junk),
        _ if inside.certificates.is_empty() => Err(ClientTlsError::NoCertificate),
        _ if inside.certificates.len() > CHAIN_MAX => Err(ClientTlsError::TooManyCertificates),
        _ => Ok(inside),
    }
}

fn certified(text: &str) -> Result<Arc<CertifiedKey>, ClientTlsError> {
    let Inside { certificates, mut keys } = read(text)?;
    let (Some(key), None) = (keys.pop(), keys.pop()) else {
        return Err(if keys.is_empty() && !text.contains("PRIVATE KEY-----") {
            ClientTlsError::NoKey
        } else {
            ClientTlsError::SeveralKeys
        });
    };
    let parsed = certificates.iter().enumerate().map(|(at, der)| parse(der, at)).collect::<Result<Vec<_>, _>>()?;
    if let Some(at) = parsed.windows(2).position(|pair| pair[0].issuer().as_raw() != pair[1].subject().as_raw()) {
        return Err(ClientTlsError::BrokenChain(at + 1));
    }
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let key = provider.key_provider.load_private_key(key).map_err(|_| ClientTlsError::UnusableKey)?;
    let certified = CertifiedKey::new(certificates, key);
    match certified.keys_match() {
        Ok(()) => Ok(Arc::new(certified)),
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => Err(ClientTlsError::NotAPair),
        // What cannot be compared is not known to fit.
        Err(_) => Err(ClientTlsError::UnusableKey),
    }
}

fn roots(text: &str) -> Result<Arc<RootCertStore>, ClientTlsError> {
    let Inside { certificates, keys } = read(text)?;
    if !keys.is_empty() {
        return Err(ClientTlsError::KeyAmongAuthorities);
    }
    let mut roots = RootCertStore::empty();
    for (at, certificate) in certificates.into_iter().enumerate() {
        parse(&certificate, at)?;
        roots.add(certificate).map_err(|_| ClientTlsError::NotAnAuthority(at + 1))?;
    }
    Ok(Arc::new(roots))
}

fn parse<'d>(der: &'d CertificateDer<'_>, at: usize) -> Result<X509Certificate<'d>, ClientTlsError> {
    match x509_parser::parse_x509_certificate(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) | Err(_) => Err(ClientTlsError::Unreadable(at + 1)),
    }
}

/// A name may hold anything, and is shown.
fn shown(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_control()).take(NAME_SHOWN_MAX).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A dozen certificates and a long key have room in it.
pub const PEM_MAX: usize = 64 * 1024;
const CHAIN_MAX: usize = 32;
const NAME_SHOWN_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

    fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    fn leaf(params: &CertificateParams, issuer: &Issuer<'_, KeyPair>) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
    }

    fn refused(identity: &str) -> Option<ClientTlsError> {
        ClientTls::load(Some(identity), None).err().map(|(part, flaw)| {
            assert_eq!(part, Part::Identity);
            flaw
        })
    }

    #[test]
    fn an_identity_is_refused_for_its_reason() {
        let (ours, others) = (authority("Ours"), authority("Others"));
        let ((certificate, key), (_, other_key)) = (leaf(&params("us"), &ours), leaf(&params("them"), &others));
        let (ca, other_ca) = (ours.pem(), others.pem());
        let encrypted =
            key.replace("BEGIN PRIVATE", "BEGIN ENCRYPTED PRIVATE").replace("END PRIVATE", "END ENCRYPTED PRIVATE");
        let old_encrypted = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
        let mangled = certificate.replace("-----BEGIN CERTIFICATE-----\nMII", "-----BEGIN CERTIFICATE-----\nAAA");
        let request = "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n";
        let parameters = "-----BEGIN DH PARAMETERS-----\nAAAA\n-----END DH PARAMETERS-----\n";
        use ClientTlsError::*;
        for (text, expected) in [
            (format!("{certificate}{key}"), None),
            (format!("{key}{certificate}{ca}"), None),
            (format!("Bag Attributes\n  name: us\n{certificate}\nmore of it\n{key}"), None),
            (format!("{certificate}{other_key}"), Some(NotAPair)),
            (format!("{ca}{certificate}{key}"), Some(BrokenChain(1))),
            (format!("{certificate}{other_ca}{key}"), Some(BrokenChain(1))),
            (format!("{certificate}{ca}{other_ca}{key}"), Some(BrokenChain(2))),
            (format!("{certificate}{encrypted}"), Some(EncryptedKey)),
            (format!("{certificate}{old_encrypted}"), Some(EncryptedKey)),
            (certificate.clone(), Some(NoKey)),
            (key.clone(), Some(NoCertificate)),
            (format!("{certificate}{key}{other_key}"), Some(SeveralKeys)),
            (format!("{certificate}{key}{request}"), Some(Junk)),
            (format!("{certificate}{key}{parameters}"), Some(Junk)),
            (format!("{certificate}{mangled}{key}"), Some(Unreadable(2))),
            (format!("{certificate}{}", &key[..key.len() - 30]), Some(NotPem)),
            (String::new(), Some(NotPem)),
            ("something".to_owned(), Some(NotPem)),
            ("x".repeat(PEM_MAX + 1), Some(TooLong)),
            (format!("{}{key}", certificate.repeat(CHAIN_MAX + 1)), Some(TooManyCertificates)),
        ] {
            assert_eq!(refused(&text), expected, "{text}");
        }
    }

    #[test]
    fn authorities_are_certificates_and_nothing_else() {
        let ours = authority("Ours");
        let (_, key) = leaf(&params("us"), &ours);
        let load = |text: &str| ClientTls::load(None, Some(text)).err();
        assert_eq!(load(&ours.pem()), None);
        let with_key = format!("{}{key}", ours.pem());
        assert_eq!(load(&with_key), Some((Part::Authorities, ClientTlsError::KeyAmongAuthorities)));
        assert_eq!(load("x"), Some((Part::Authorities, ClientTlsError::NotPem)));
    }

    #[test]
    fn what_a_certificate_says_is_read() {
        let ours = authority("Ours");
        let mut wanted = params("us\u{7}");
        wanted.not_before = date_time_ymd(2020, 1, 1);
        wanted.not_after = date_time_ymd(2021, 1, 1);
        let (certificate, key) = leaf(&wanted, &ours);
        let text = format!("{certificate}{key}");
        let facts = facts(&text).unwrap().remove(0);
        assert_eq!((facts.subject.as_str(), facts.fingerprint.len()), ("CN=us", 64));
        assert!(facts.issuer.contains("Ours"), "{facts:?}");
        assert_eq!(facts.not_after, Timestamp::from_millis(1_609_459_200_000));
        let year = 365 * 86_400_000;
        for (at, expected) in [
            (1_577_836_800_000 - 1, Err(ClientTlsError::NotYetValid(1))),
            (1_577_836_800_000, Ok(())),
            (1_577_836_800_000 + year, Ok(())),
            (1_609_459_200_000, Err(ClientTlsError::Expired(1))),
        ] {
            assert_eq!(check_times(&text, Timestamp::from_millis(at)), expected, "{at}");
        }
    }

    #[test]
    fn others_have_another_mark() {
        let ours = authority("Ours");
        let ((certificate, key), (another, its_key)) = (leaf(&params("us"), &ours), leaf(&params("us"), &ours));
        let (one, two) = (format!("{certificate}{key}"), format!("{another}{its_key}"));
        let ca = ours.pem();
        let mark = |identity, ca| ClientTls::load(identity, ca).unwrap().mark().to_owned();
        let marks =
            [mark(Some(&one), None), mark(Some(&two), None), mark(None, Some(&ca)), mark(Some(&one), Some(&ca))];
        let different: std::collections::HashSet<&String> = marks.iter().collect();
        assert_eq!(different.len(), 4);
        assert_eq!(mark(Some(&one), None), marks[0]);
    }
}
