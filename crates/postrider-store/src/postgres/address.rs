//! Where the database is, and what its address says about the way there.

use super::describe;
use std::{fmt, net::IpAddr, str::FromStr};
use tokio_postgres::{Config, config::Host};

/// Where the database is. It shows itself without its password.
#[derive(Clone)]
pub struct DatabaseUrl {
    /// One for each host, in the order in which they are named.
    hosts: Vec<Config>,
    tls: Tls,
}

#[derive(Debug, thiserror::Error)]
#[error("not the address of a PostgreSQL database (postgres://user:password@host:port/name): {0}")]
pub struct BadUrl(String);

/// There is nothing between: an encrypted connection to anybody at all keeps nobody out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    Off,
    /// The server's certificate and its name are checked.
    Checked,
}

impl DatabaseUrl {
    /// Its name, if the URL says it.
    pub fn database(&self) -> Option<&str> {
        self.hosts.first().and_then(Config::get_dbname)
    }

    pub(super) fn hosts(&self) -> &[Config] {
        &self.hosts
    }

    pub(super) fn tls(&self) -> Tls {
        self.tls
    }
}

impl FromStr for DatabaseUrl {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Self, BadUrl> {
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(BadUrl("it must begin with postgres://".to_owned()));
        }
        // What comes before the first @ may be a password with anything in it.
        let place = text.find('@').map_or(0, |at| at + 1);
        let (place, wishes) = match text[place..].find('?') {
            Some(mark) => (&text[..place + mark], &text[place + mark + 1..]),
            None => (text, ""),
        };
        let mut tls = None;
        let mut rest = Vec::new();
        for wish in wishes.split('&').filter(|wish| !wish.is_empty()) {
            match wish.split_once('=') {
                Some(("sslmode", mode)) => tls = Some(tls_for(mode)?),
                Some(("target_session_attrs", attributes)) => refuse_standby(attributes)?,
                Some(("sslrootcert", _)) => return Err(BadUrl(CA_ELSEWHERE.to_owned())),
                Some(("sslnegotiation", "direct")) => return Err(BadUrl(NOT_DIRECT.to_owned())),
                Some(_) | None => rest.push(wish),
            }
        }
        let config: Config = format!("{place}?{}", rest.join("&")).parse().map_err(|error| BadUrl(describe(&error)))?;
        let tls = tls.unwrap_or_else(|| if is_local(&config) { Tls::Off } else { Tls::Checked });
        Ok(Self { hosts: one_by_one(&config)?, tls })
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(place_of).collect();
        write!(f, "{} on {}", self.database().unwrap_or("the user's own database"), hosts.join(" or "))
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

/// Host and port.
pub fn place_of(config: &Config) -> String {
    let port = config.get_ports().first().copied().unwrap_or(PORT);
    match config.get_hosts().first() {
        Some(Host::Tcp(name)) if name.contains(':') => format!("[{name}]:{port}"),
        Some(Host::Tcp(name)) => format!("{name}:{port}"),
        Some(Host::Unix(folder)) => format!("{}:{port}", folder.display()),
        None => format!(":{port}"),
    }
}

/// The modes are those of PostgreSQL's own programs. One that would let an unchecked server in is not taken for a stricter
/// one: whoever wrote it expects to be let in.
fn tls_for(mode: &str) -> Result<Tls, BadUrl> {
    match mode {
        "disable" => Ok(Tls::Off),
        "require" | "verify-full" => Ok(Tls::Checked),
        "allow" | "prefer" => Err(BadUrl(format!(
            "sslmode={mode} encrypts only if the server likes to; write verify-full, or disable to do without"
        ))),
        "verify-ca" => Err(BadUrl("sslmode=verify-ca does not check the server's name; write verify-full".to_owned())),
        _ => Err(BadUrl(format!("there is no sslmode={mode}; write verify-full, or disable to do without"))),
    }
}

/// A server that takes writes is looked for in any case.
fn refuse_standby(attributes: &str) -> Result<(), BadUrl> {
    match attributes {
        "any" | "read-write" | "primary" => Ok(()),
        _ => Err(BadUrl(format!("target_session_attrs={attributes} is of no use, because Postrider must write"))),
    }
}

fn is_local(config: &Config) -> bool {
    let names_this = config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => name == "localhost" || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()),
        Host::Unix(_) => true,
    });
    // It is the address that is gone to, whatever the name is.
    names_this && config.get_hostaddrs().iter().all(IpAddr::is_loopback)
}

/// One configuration for each host, so that all of them can be asked at once.
fn one_by_one(config: &Config) -> Result<Vec<Config>, BadUrl> {
    let (hosts, ports, addresses) = (config.get_hosts(), config.get_ports(), config.get_hostaddrs());
    if hosts.is_empty() {
        return Err(BadUrl("it names no host".to_owned()));
    }
    let fits = |count: usize| count <= 1 || count == hosts.len();
    if !fits(ports.len()) || !(addresses.is_empty() || addresses.len() == hosts.len()) {
        return Err(BadUrl("it does not name one port, and one hostaddr if any, for each host".to_owned()));
    }
    let alone = hosts.iter().enumerate().map(|(index, host)| {
        let mut alone = Config::new();
        match host {
            Host::Tcp(name) => alone.host(name),
            Host::Unix(folder) => alone.host_path(folder),
        };
        alone.port(ports.get(index).or(ports.first()).copied().unwrap_or(PORT));
        addresses.get(index).map(|address| alone.hostaddr(*address));
        config.get_user().map(|user| alone.user(user));
        config.get_password().map(|password| alone.password(password));
        config.get_dbname().map(|name| alone.dbname(name));
        config.get_options().map(|options| alone.options(options));
        alone.channel_binding(config.get_channel_binding());
        alone
    });
    Ok(alone.collect())
}

const PORT: u16 = 5432;
const CA_ELSEWHERE: &str =
    "instead of sslrootcert, name the authority's file by the setting database_ca_file, or ca_file of an outbox";
const NOT_DIRECT: &str = "sslnegotiation=direct is not supported; leave it out";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<DatabaseUrl, String> {
        text.parse().map_err(|error: BadUrl| error.to_string())
    }

    #[test]
    fn a_connection_that_leaves_the_machine_is_encrypted_unless_said_otherwise() {
        for (address, tls) in [
            ("u:p@db.example.com/hooks", Tls::Checked),
            ("u:p@127.0.0.1,db.example.com/hooks", Tls::Checked),
            ("u:sslmode=disable@db.example.com/hooks", Tls::Checked),
            ("u:p@localhost/hooks", Tls::Off),
            ("u:p@localhost/hooks?hostaddr=127.0.0.1", Tls::Off),
            ("u:p@localhost/hooks?hostaddr=192.0.2.7", Tls::Checked),
            ("u:p@db.example.com/hooks?hostaddr=127.0.0.1", Tls::Checked),
            ("u:p@127.0.0.1:5433/hooks", Tls::Off),
            ("u:p@[::1]/hooks", Tls::Off),
            ("u:p@%2Frun%2Fpostgresql/hooks", Tls::Off),
            ("u:p@db.example.com/hooks?sslmode=disable", Tls::Off),
            ("u:p@localhost/hooks?sslmode=require", Tls::Checked),
            ("u:p@localhost/hooks?target_session_attrs=primary&sslmode=verify-full", Tls::Checked),
        ] {
            let found = read(&format!("postgres://{address}")).map(|url| url.tls());
            assert_eq!(found, Ok(tls), "{address}");
        }
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        for (wish, reason) in [
            ("sslmode=allow", "sslmode=allow encrypts only if the server likes to"),
            ("sslmode=prefer", "write verify-full, or disable to do without"),
            ("sslmode=verify-ca", "does not check the server's name; write verify-full"),
            ("sslmode=on", "there is no sslmode=on"),
            ("sslrootcert=ca.pem", "database_ca_file"),
            ("sslnegotiation=direct", "not supported"),
            ("target_session_attrs=read-only", "because Postrider must write"),
            ("target_session_attrs=prefer-standby", "because Postrider must write"),
            ("wish=1", "unknown option `wish`"),
        ] {
            let refused = read(&format!("postgres://u:p@db/hooks?{wish}")).expect_err(wish);
            assert!(refused.contains(reason), "{wish}: {refused}");
        }
    }

    #[test]
    fn every_host_is_asked_for_the_same_database() {
        let url = read("postgres://u:p@one:5433,two,[::2]:5434/hooks?options=-cwork_mem%3D8MB").unwrap();
        assert_eq!(url.to_string(), "hooks on one:5433 or two:5432 or [::2]:5434");
        for host in url.hosts() {
            assert_eq!((host.get_hosts().len(), host.get_ports().len()), (1, 1));
            assert_eq!((host.get_user(), host.get_password()), (Some("u"), Some(&b"p"[..])));
            assert_eq!((host.get_dbname(), host.get_options()), (Some("hooks"), Some("-cwork_mem=8MB")));
        }
        assert!(!format!("{url:?}").contains(":p@"));
    }
}
