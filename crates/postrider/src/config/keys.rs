//! Every setting, once: its name, its form, its default and what it is for.
//!
//! The defaults are the lowest layer of the settings and the reference page is written from the same
//! table, so that the page cannot say one thing and the server do another.

use std::fmt::Write;

pub struct Key {
    pub name: &'static str,
    pub form: Form,
    /// `None`: not set.
    pub default: Option<&'static str>,
    pub secret: bool,
    pub flag: Option<&'static str>,
    pub about: &'static str,
}

/// How the text of a variable or a flag is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Text,
    Switch,
    Number,
    /// Separated by commas in a variable; an array in the file.
    List,
    /// JSON in a variable; a table in the file.
    Rules,
    /// JSON in a variable, or one address; addresses in flags; an array in the file.
    Outboxes,
}

pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

pub fn nearest(name: &str) -> &'static str {
    KEYS.iter()
        .map(|key| key.name)
        // A name that was cut short is more likely meant than one of a similar length.
        .min_by_key(|known| (!known.starts_with(name), strsim::damerau_levenshtein(name, known)))
        .expect("the table has keys")
}

/// The page `docs/guide/settings.md`.
pub fn reference() -> String {
    let mut page = String::from(PREFACE);
    for key in KEYS {
        let default = key.default.map_or_else(|| "not set".to_owned(), |text| format!("`{}`", shown(key, text)));
        let flag = key.flag.map_or_else(String::new, |flag| format!(", flag `{flag}`"));
        write!(
            page,
            "\n### `{}`\n\nDefault: {default}. Variable `{}`{flag}.\n\n{}\n",
            key.name,
            variable(key.name),
            key.about
        )
        .expect("writing to a string does not fail");
    }
    page
}

pub fn variable(name: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", name.to_ascii_uppercase())
}

fn shown(key: &Key, text: &str) -> String {
    match key.form {
        Form::Text => format!("\"{text}\""),
        Form::Switch | Form::Number => text.to_owned(),
        Form::List => format!("[{text}]"),
        Form::Rules | Form::Outboxes => text.to_owned(),
    }
}

pub const VARIABLE_PREFIX: &str = "POSTRIDER_";

const PREFACE: &str = "\
# Settings

<!-- Written from the table in crates/postrider/src/config/keys.rs; BLESS=1 cargo test -p postrider settings_page renews it. -->

Settings come from three places, and the last one that names a setting wins:

1. the file `postrider.toml` in the folder where the command runs, if there is one, or the file named with `--config`;
2. variables `POSTRIDER_<NAME>`, for example `POSTRIDER_LISTEN`;
3. flags.

```toml
# postrider.toml
listen = \"0.0.0.0:8071\"
data = \"/var/lib/postrider\"
allow_subnets = [\"10.20.0.0/16\"]
retention_payloads = \"30d\"

[rules]
retryPolicy = \"default\"
```

An unknown name, a value of the wrong type or out of range stops the start, with a message that says which
setting, where it was written and what was meant. A duration is text with a unit: `500ms`, `10s`, `5m`,
`12h`, `90d`, or several together, `1h30m`; a bare number is refused. Paths are relative to the folder where the
command runs. A list is an array in the file, comma-separated text in a variable, and a repeated flag.

Some variables have such names and are not settings: `POSTRIDER_CONFIG` (as `--config`), `POSTRIDER_URL` and
`POSTRIDER_TOKEN` (for the commands that talk to a running server), `POSTRIDER_SECRET` (for `receive` and
`endpoints add`), `POSTRIDER_OUTBOX_URL` (for `outbox`), and those that Kubernetes makes for a service called
`postrider` (`POSTRIDER_PORT`, `POSTRIDER_PORT_...`, `POSTRIDER_SERVICE_...`).

## Reference
";

pub const KEYS: &[Key] = &[
    Key {
        name: "listen",
        form: Form::Text,
        default: Some("127.0.0.1:8071"),
        secret: false,
        flag: Some("--listen"),
        about: "The address and port that the API is served on. In the clear, unless `tls_certificate_file` is set: for anything beyond this machine set that, or put a proxy in front.",
    },
    Key {
        name: "tls_certificate_file",
        form: Form::Text,
        default: None,
        secret: false,
        flag: None,
        about: "A PEM file with the certificate that the API is served with, and those between it and its authority. TLS 1.2 and 1.3 are spoken. Looked at again once a minute, so that a renewed one is taken over without a restart.",
    },
    Key {
        name: "tls_private_key_file",
        form: Form::Text,
        default: None,
        secret: false,
        flag: None,
        about: "The private key of `tls_certificate_file`, in PEM and not encrypted. It must not be readable by every user.",
    },
    Key {
        name: "data",
        form: Form::Text,
        default: Some("./postrider-data"),
        secret: false,
        flag: Some("--data"),
        about: "The folder with the database and `keys.toml`. Made at first start. It must be on a local disk. With `database_url` it holds only `keys.toml`.",
    },
    Key {
        name: "database_url",
        form: Form::Text,
        default: None,
        secret: true,
        flag: Some("--database-url"),
        about: "A PostgreSQL database, 15 or later, in place of the one in the data folder: `postgres://user:password@host:5432/name`. Any number of nodes may share it; see [PostgreSQL](../operations/postgresql.md). Special characters of the password are written as `%40` and the like. A connection that leaves the machine is encrypted and the certificate checked, unless `?sslmode=` says otherwise. Prefer the variable to the flag, which every user of the machine can see; a file that holds it must not be readable by every user.",
    },
    Key {
        name: "database_ca_file",
        form: Form::Text,
        default: None,
        secret: false,
        flag: None,
        about: "A PEM file with certificate authorities that the PostgreSQL server's certificate may be signed by, besides the public ones. A file without one is refused, as is this setting without `database_url`.",
    },
    Key {
        name: "node_name",
        form: Form::Text,
        default: None,
        secret: false,
        flag: Some("--node-name"),
        about: "By what name this node is shown among those that share a PostgreSQL database; up to 40 characters. Only for people: two with the same name do no harm. Not set: the machine's host name. Refused without `database_url`.",
    },
    Key {
        name: "lease",
        form: Form::Text,
        default: Some("5s"),
        secret: false,
        flag: Some("--lease"),
        about: "Where nodes share a PostgreSQL database: how long one that the others do not hear of keeps its lanes. When it dies without a word, nothing is sent from them for so long. From `1s` to `60s`. A node renews it five times in that span; one that is held up for longer loses its lanes, and what it was sending may be sent again. Refused without `database_url`.",
    },
    Key {
        name: "public_url",
        form: Form::Text,
        default: None,
        secret: false,
        flag: Some("--public-url"),
        about: "The address by which others reach this server, used in links that it hands out. Not set: `http://` and the address it listens on.",
    },
    Key {
        name: "portal_frames",
        form: Form::List,
        default: Some(""),
        secret: false,
        flag: None,
        about: "Sites that may show the pages of one application in a frame, such as `https://app.example.com`: those where you embed the portal for your customers. Only `https` sites, and those of this machine. Needs TLS, here or at a proxy (`public_url`), because browsers keep no cookies in frames without it. Pages of operators are never shown in a frame.",
    },
    Key {
        name: "allow_subnets",
        form: Form::List,
        default: Some(""),
        secret: false,
        flag: Some("--allow-subnet"),
        about: "Ranges that deliveries may go to although they are private, loopback or otherwise special, such as `127.0.0.0/8` or `fd00::/8`. Everything special is refused unless a range here holds it.",
    },
    Key {
        name: "allow_ports",
        form: Form::List,
        default: Some(""),
        secret: false,
        flag: Some("--allow-port"),
        about: "Ports that endpoints may have besides 80, 443 and those from 1024 up that no well-known service has.",
    },
    Key {
        name: "https_only",
        form: Form::Switch,
        default: Some("false"),
        secret: false,
        flag: Some("--https-only"),
        about: "Refuse endpoints whose URL is not `https://`. Off by default, so that a first try works; turn it on in production.",
    },
    Key {
        name: "default_signature_type",
        form: Form::Text,
        default: Some("hmac256"),
        secret: false,
        flag: None,
        about: "What is made for an endpoint that brings no secret of its own: `hmac256`, a secret that both ends share (`whsec_`), or `ed25519`, a key of which receivers get the public half (`whpk_`). See [verifying](verifying.md).",
    },
    Key {
        name: "egress_proxy",
        form: Form::Text,
        default: None,
        secret: true,
        flag: None,
        about: "An HTTP proxy that all deliveries go by, `http://host:port` or `http://user:password@host:port`. It is asked to `CONNECT` to addresses, never to names: names are still looked up and judged here. `HTTP_PROXY` and its like in the environment are not looked at.",
    },
    Key {
        name: "body_max",
        form: Form::Text,
        default: Some("1MiB"),
        secret: false,
        flag: None,
        about: "The largest request body that the API takes, as bytes or with a unit (`KiB`, `MiB`); 1 KiB to 64 MiB. A larger one gets 413. Many messages at once may have 8 MiB together, and each of them this.",
    },
    Key {
        name: "connections_max",
        form: Form::Number,
        default: Some("10000"),
        secret: false,
        flag: None,
        about: "How many connections to the API may be open at once.",
    },
    Key {
        name: "connections_per_address_max",
        form: Form::Number,
        default: Some("1000"),
        secret: false,
        flag: None,
        about: "How many of them may come from one address (with IPv6, from one /64). Connections from this machine itself are not counted by address. If a proxy on another machine is in front, all come from its address: set this to `connections_max` then.",
    },
    Key {
        name: "ingest_rate_per_application",
        form: Form::Number,
        default: None,
        secret: false,
        flag: None,
        about: "How many messages a second may be handed in for one application by the API; after a rest, as many at once. One more gets 429 with `Retry-After`, before its body is read. From 1 to 1000000; not set: no limit. Each node counts for itself. What an [outbox](outbox.md) brings is not counted. How fast an application's messages are sent is another matter: its `rateLimit`.",
    },
    Key {
        name: "ingest_rate_per_token",
        form: Form::Number,
        default: None,
        secret: false,
        flag: None,
        about: "The same for one token, over all applications together. Where both are set, both hold.",
    },
    Key {
        name: "retention_payloads",
        form: Form::Text,
        default: Some("90d"),
        secret: false,
        flag: Some("--retention-payloads"),
        about: "How long the payloads of messages are kept; at least an hour. What still waits to be delivered is kept regardless.",
    },
    Key {
        name: "retention_attempts",
        form: Form::Text,
        default: Some("90d"),
        secret: false,
        flag: Some("--retention-attempts"),
        about: "How long attempts are kept, with what was answered; at least an hour.",
    },
    Key {
        name: "retention_dead_letters",
        form: Form::Text,
        default: Some("30d"),
        secret: false,
        flag: Some("--retention-dead-letters"),
        about: "How long a dead letter can be found and replayed; at least an hour. Its message stays as long as others do.",
    },
    Key {
        name: "rules",
        form: Form::Rules,
        default: None,
        secret: false,
        flag: None,
        about: "How endpoints are treated where neither the event type, the endpoint nor the application says anything: `retryPolicy`, `statusOverrides`, `timeouts`, `circuitBreaker`, `maxInFlight`, `ordering`, `signature` and `autoDisable`, as in the API. A table in the file (`[rules]`), JSON text in the variable. See [retries](retries.md).",
    },
    Key {
        name: "outboxes",
        form: Form::Outboxes,
        default: None,
        secret: true,
        flag: Some("--outbox"),
        about: "Databases of producers that events are taken over from, each with `url` (`postgres://user:password@host/name`) and, if wanted, `name` (by which metrics call it; else the database's), `schema` (else `postrider`) and `ca_file`. An array of tables in the file (`[[outboxes]]`), JSON text in the variable, an address in each flag. A file that holds them must not be readable by every user. See [outbox](outbox.md).",
    },
    Key {
        name: "extra_ca_file",
        form: Form::Text,
        default: None,
        secret: false,
        flag: None,
        about: "A PEM file with certificate authorities that endpoints may use besides the public ones.",
    },
    Key {
        name: "encryption_keys",
        form: Form::List,
        default: Some(""),
        secret: true,
        flag: None,
        about: "Keys that endpoints' secrets and headers are sealed with, in the place of those in `keys.toml`: each 32 bytes in base64, the current one first, then those that what was sealed before may still need. For deployments that get their secrets from elsewhere. See [keys](../operations/running.md#keys).",
    },
    Key {
        name: "landlock",
        form: Form::Switch,
        default: Some("true"),
        secret: false,
        flag: None,
        about: "Let the kernel shut the file system to the server but for its data folder, the files that the settings name, and what programs read of a system (`/etc`, libraries, `/proc`). Linux 5.13 and later can; where the kernel cannot, the server says so and runs without.",
    },
    Key {
        name: "metrics_top",
        form: Form::Number,
        default: Some("100"),
        secret: false,
        flag: None,
        about: "Of how many endpoints, applications and event types, each, [metrics](metrics.md#by-endpoint-application-and-event-type) are shown by name: the busiest. All others are counted together. Up to 10000; `0`: none. A name has up to 25 series.",
    },
    Key {
        name: "otlp_endpoint",
        form: Form::Text,
        default: None,
        secret: false,
        flag: None,
        about: "The collector that [traces](../operations/observing.md#traces) are sent to by OTLP over HTTP, such as `http://localhost:4318`; `/v1/traces` is added if there is no path. Over https its certificate must be signed by a public authority or one in `extra_ca_file`. Headers that it wants come from the variable `OTEL_EXPORTER_OTLP_HEADERS`. Not set: nothing is traced.",
    },
    Key {
        name: "trace_sample",
        form: Form::Text,
        default: Some("0.1"),
        secret: false,
        flag: None,
        about: "Of messages that come without a `traceparent`, the share that is traced: from `0` to `1`. Whoever sends one has decided in it already.",
    },
    Key {
        name: "log",
        form: Form::Text,
        default: Some("info"),
        secret: false,
        flag: Some("--log"),
        about: "What is logged: `error`, `warn`, `info`, `debug`, `trace`, or by module, `info,postrider::transport=debug`. `info,postrider::attempts=debug` adds a line for [each attempt](../operations/observing.md#logs). Logs go to standard error and hold neither payloads nor secrets.",
    },
    Key {
        name: "log_format",
        form: Form::Text,
        default: Some("text"),
        secret: false,
        flag: Some("--log-format"),
        about: "`text` for people, `json` for machines: one object a line.",
    },
    Key {
        name: "attempt_headers",
        form: Form::Text,
        default: Some("failed"),
        secret: false,
        flag: None,
        about: "Of which attempts the headers of request and answer are kept and [can be looked at](dashboard.md#to-understand-a-failed-delivery): `failed`, `all`, or `none`. They take about a kilobyte each, and six at most.",
    },
    Key {
        name: "shutdown_grace",
        form: Form::Text,
        default: Some("30s"),
        secret: false,
        flag: Some("--shutdown-grace"),
        about: "After SIGTERM or Ctrl-C, how long attempts under way may take to end; at most an hour. A second signal ends the server at once. Nothing is lost either way.",
    },
    Key {
        name: "alert_success_rate",
        form: Form::Number,
        default: Some("90"),
        secret: false,
        flag: None,
        about: "Operators are told when fewer than so many per cent of an application's attempts succeed in `alert_window`, and once more when it is halfway back to all. `0`: never. See [alerts](alerts.md).",
    },
    Key {
        name: "alert_attempts_min",
        form: Form::Number,
        default: Some("100"),
        secret: false,
        flag: None,
        about: "Of fewer attempts of an application in `alert_window` nothing is said.",
    },
    Key {
        name: "alert_window",
        form: Form::Text,
        default: Some("10m"),
        secret: false,
        flag: None,
        about: "How far back `alert_success_rate` and the two settings of growth look; from `1s` to `24h`. That something is over must last a minute, or this if it is shorter.",
    },
    Key {
        name: "alert_backlog_growth",
        form: Form::Number,
        default: Some("10000"),
        secret: false,
        flag: None,
        about: "Operators are told when so many more deliveries wait than `alert_window` ago. `0`: never.",
    },
    Key {
        name: "alert_dead_letters_growth",
        form: Form::Number,
        default: Some("1000"),
        secret: false,
        flag: None,
        about: "Operators are told when there are so many more dead letters than `alert_window` ago. `0`: never.",
    },
    Key {
        name: "alert_breakers_open",
        form: Form::Number,
        default: Some("20"),
        secret: false,
        flag: None,
        about: "Operators are told when so many endpoints' breakers are open. `0`: never.",
    },
    Key {
        name: "alert_oldest_due",
        form: Form::Text,
        default: Some("5m"),
        secret: false,
        flag: None,
        about: "When something has been due for so long, and no outcome at all was written down for as long, operators are told and `GET /api/v1/health/ready` answers 503. At least `1s`; `0s`: never.",
    },
    Key {
        name: "alert_mail_server",
        form: Form::Text,
        default: None,
        secret: true,
        flag: None,
        about: "The mail server that alerts are sent by: `smtps://user:password@host` (TLS, port 465), `smtp://...` (STARTTLS, port 587) or `smtp+plain://...` (in the clear, port 25, for a server on this machine). Its certificate must be signed by a public authority or one in `extra_ca_file`. Special characters of the password are written as `%40` and the like. A file that holds it must not be readable by every user.",
    },
    Key {
        name: "alert_mail_from",
        form: Form::Text,
        default: None,
        secret: false,
        flag: None,
        about: "The address that alerts are sent from, `alerts@example.com`.",
    },
    Key {
        name: "alert_mail_to",
        form: Form::List,
        default: Some(""),
        secret: false,
        flag: None,
        about: "The addresses that alerts are sent to.",
    },
    Key {
        name: "alert_mail_owners",
        form: Form::List,
        default: Some(""),
        secret: false,
        flag: None,
        about: "Addresses that alerts about one application and its endpoints are sent to besides, each as `APPLICATION=ADDRESS` with the application's uid or id: `acme=owner@acme.example`. The same application may be named with several.",
    },
    Key {
        name: "jwt_algorithm",
        form: Form::Text,
        default: Some("HS256"),
        secret: false,
        flag: None,
        about: "How API tokens are signed: `HS256`, `HS384`, `HS512`, `RS256`, `RS384`, `RS512` or `EdDSA`. A token signed in any other way is refused, whatever its header says.",
    },
    Key {
        name: "jwt_secret",
        form: Form::Text,
        default: None,
        secret: true,
        flag: None,
        about: "The secret for `HS...`, if tokens are also made elsewhere: at least 32, 48 or 64 bytes. Not set: the one in `keys.toml`. A file that holds it must not be readable by every user.",
    },
    Key {
        name: "jwt_public_key_file",
        form: Form::Text,
        default: None,
        secret: false,
        flag: None,
        about: "A PEM file with the public key for `RS...` or `EdDSA`.",
    },
    Key {
        name: "jwt_private_key_file",
        form: Form::Text,
        default: None,
        secret: false,
        flag: None,
        about: "The private half, in PEM. Without it this server checks tokens but cannot make any: `postrider token` and portal access then fail.",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    #[test]
    fn the_settings_page_says_what_the_table_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/settings.md");
        if std::env::var_os("BLESS").is_some() {
            fs::write(&path, reference()).expect("the page can be written");
        }
        let page = fs::read_to_string(&path).expect("the page exists");
        assert!(page == reference(), "docs/guide/settings.md is out of step; see its first lines");
    }

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        for (given, expected) in
            [("listne", "listen"), ("body-max", "body_max"), ("allow_subnet", "allow_subnets"), ("Log", "log")]
        {
            assert_eq!(nearest(given), expected, "{given}");
        }
    }
}
