//! Why no answer came, in two forms: the fault that the policy judges, and a sentence for the owner.
//!
//! The sentences are our own. An error's own text may name an address or a name server, and what we could
//! not reach is nobody's business outside.

use postrider_engine::{Fault, TimeoutPhase, TlsFault};
use rustls::{AlertDescription, CertificateError};
use std::error::Error as _;
use std::io;

#[derive(Debug)]
pub(super) struct Failure {
    pub fault: Fault,
    pub detail: String,
}

impl Failure {
    pub fn new(fault: Fault, detail: impl Into<String>) -> Self {
        Self { fault, detail: detail.into() }
    }

    pub fn forbidden() -> Self {
        Self::new(Fault::Forbidden, "the endpoint's address is one that this server does not call")
    }

    /// What an endpoint's owner set up for TLS cannot be kept without it.
    pub fn unprotected() -> Self {
        Self::new(
            Fault::Tls(TlsFault::Handshake),
            "the endpoint has a client certificate or an authority of its own, and is not called by plain http",
        )
    }

    /// What had not come when which limit was reached.
    pub fn timeout(missing: &'static str, limit: TimeoutPhase) -> Self {
        let limit_name = match limit {
            TimeoutPhase::Connect => "connect",
            TimeoutPhase::FirstByte => "first-byte",
            TimeoutPhase::Total => "total",
        };
        Self::new(Fault::Timeout(limit), format!("no {missing} within the {limit_name} timeout"))
    }

    /// The endpoint's own URL answered; it was a later one that did not.
    pub fn after_redirects(self, followed: usize) -> Self {
        let detail = match followed {
            0 => self.detail,
            1 => format!("after 1 redirect: {}", self.detail),
            _ => format!("after {followed} redirects: {}", self.detail),
        };
        Self { detail, ..self }
    }

    pub fn protocol(what: &'static str) -> Self {
        Self::new(Fault::Protocol(what), format!("the answer is not usable HTTP: {what}"))
    }

    pub fn reset() -> Self {
        Self::new(Fault::Reset, "the connection closed before a complete response head")
    }

    pub fn local_shortage() -> Self {
        Self::new(Fault::LocalResource, "this server is out of file handles, ports or memory")
    }

    pub fn from_io(error: &io::Error) -> Self {
        if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            return Self::from_tls(tls);
        }
        if is_local_shortage(error) {
            return Self::local_shortage();
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                Self::new(Fault::Refused, "the connection was refused: nothing listens there")
            }
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::AddrNotAvailable
            | io::ErrorKind::PermissionDenied => {
                Self::new(Fault::Unreachable, "there is no route to the endpoint's host")
            }
            // The kernel's own give-up, after its retransmissions.
            io::ErrorKind::TimedOut => Self::new(Fault::Unreachable, "the endpoint's host stopped answering"),
            _ => Self::reset(),
        }
    }

    pub fn from_tls(error: &rustls::Error) -> Self {
        let (fault, detail) = match error {
            rustls::Error::InvalidCertificate(certificate) => from_certificate(certificate),
            rustls::Error::InvalidMessage(_) => (
                TlsFault::Handshake,
                "the answer to the TLS handshake is not TLS; is this a plain HTTP port?".to_owned(),
            ),
            rustls::Error::AlertReceived(alert) => (TlsFault::Handshake, from_alert(*alert)),
            rustls::Error::PeerIncompatible(_) => (TlsFault::Handshake, OTHER_VERSION.to_owned()),
            other => (TlsFault::Handshake, format!("the TLS handshake failed: {other}")),
        };
        Self::new(Fault::Tls(fault), detail)
    }

    pub fn from_hyper(error: &hyper::Error) -> Self {
        if error.is_parse_too_large() {
            return Self::protocol("the response head is too large");
        }
        if error.is_parse_version_h2() {
            return Self::protocol("an HTTP/2 answer on an HTTP/1.1 connection");
        }
        if error.is_parse() {
            return Self::protocol("malformed response head");
        }
        let Some(source) = error.source() else {
            return Self::reset();
        };
        if let Some(io) = source.downcast_ref::<io::Error>() {
            return Self::from_io(io);
        }
        if let Some(h2) = source.downcast_ref::<h2::Error>() {
            return Self::from_h2(h2);
        }
        Self::reset()
    }

    fn from_h2(error: &h2::Error) -> Self {
        if let Some(io) = error.get_io() {
            return Self::from_io(io);
        }
        match error.reason() {
            Some(reason) if error.is_remote() => {
                Self::new(Fault::Reset, format!("the endpoint ended the HTTP/2 stream: {}", reason.description()))
            }
            _ => Self::protocol("malformed HTTP/2"),
        }
    }

    /// Which of several failures to report, when a name has several addresses and none connects: what
    /// the owner can act on comes first.
    pub fn weight(&self) -> u8 {
        match self.fault {
            Fault::LocalResource => 3,
            Fault::Refused => 2,
            Fault::Unreachable => 0,
            Fault::Dns
            | Fault::Forbidden
            | Fault::Reset
            | Fault::Tls(_)
            | Fault::Timeout(_)
            | Fault::Protocol(_)
            | Fault::NoToken => 1,
        }
    }
}

/// What the receiver says when it ends the handshake, or, in TLS 1.3, when it has looked at our certificate.
fn from_alert(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => {
            "the endpoint wants a client certificate, and has none of us".to_owned()
        }
        AlertDescription::CertificateExpired => refused_certificate("it has expired"),
        AlertDescription::CertificateRevoked => refused_certificate("it was revoked"),
        AlertDescription::UnknownCA => refused_certificate("it does not know the authority"),
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::AccessDenied => refused_certificate(&format!("it says {alert:?}")),
        AlertDescription::ProtocolVersion => OTHER_VERSION.to_owned(),
        other => format!("the endpoint refused the TLS handshake with the alert {other:?}"),
    }
}

fn refused_certificate(why: &str) -> String {
    format!("the endpoint did not accept our client certificate: {why}")
}

const OTHER_VERSION: &str = "the endpoint speaks neither TLS 1.2 nor 1.3 in a way we do";

fn from_certificate(error: &CertificateError) -> (TlsFault, String) {
    let (fault, detail) = match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            (TlsFault::Expired, "the endpoint's certificate has expired")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            (TlsFault::NotYetValid, "the endpoint's certificate is not valid yet")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            (TlsFault::WrongHost, "the endpoint's certificate is for another host")
        }
        // A bad signature is an authority that bears a known name and has another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            (TlsFault::UnknownIssuer, "the endpoint's certificate comes from an authority we do not know")
        }
        // What `openssl req -x509` makes: a self-signed authority, served as if it were a host. rustls
        // hands it on as an opaque error.
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            (TlsFault::UnknownIssuer, "the endpoint's certificate is self-signed")
        }
        other => {
            return (TlsFault::Handshake, format!("the endpoint's certificate was not accepted: {other}"));
        }
    };
    (fault, detail.to_owned())
}

fn is_local_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
        || matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::AddrInUse)
}

// The same numbers on Linux, macOS and the BSDs; std has no kind for them.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_is_somebodys_fault() {
        for (error, expected) in [
            (io::Error::from_raw_os_error(EMFILE), Fault::LocalResource),
            (io::Error::from_raw_os_error(ENFILE), Fault::LocalResource),
            (io::ErrorKind::OutOfMemory.into(), Fault::LocalResource),
            (io::ErrorKind::ConnectionRefused.into(), Fault::Refused),
            (io::ErrorKind::HostUnreachable.into(), Fault::Unreachable),
            (io::ErrorKind::NetworkUnreachable.into(), Fault::Unreachable),
            (io::ErrorKind::TimedOut.into(), Fault::Unreachable),
            (io::ErrorKind::ConnectionReset.into(), Fault::Reset),
            (io::ErrorKind::BrokenPipe.into(), Fault::Reset),
            (io::ErrorKind::UnexpectedEof.into(), Fault::Reset),
        ] {
            assert_eq!(Failure::from_io(&error).fault, expected, "{error}");
        }
    }

    #[test]
    fn a_tls_error_keeps_its_name_inside_an_io_error() {
        let expired = rustls::Error::InvalidCertificate(CertificateError::Expired);
        let error = io::Error::new(io::ErrorKind::InvalidData, expired);
        assert_eq!(Failure::from_io(&error).fault, Fault::Tls(TlsFault::Expired));
    }
}
