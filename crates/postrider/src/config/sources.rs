//! Where settings are written, and how an error leads back there.

use super::{
    KEYS, SettingsError,
    keys::{self, Form, VARIABLE_PREFIX},
};
use figment::{
    Figment, Metadata, Profile, Provider,
    providers::{Format, Toml},
    value::{Dict, Map, Value},
};
use std::{
    ffi::OsString,
    fmt, fs, io,
    path::{Path, PathBuf},
};

/// What was given, before anything was made of it. No `Debug`: the text of the file may hold a secret.
#[derive(Clone, Default)]
pub struct Sources {
    file: Option<(PathBuf, String)>,
    variables: Vec<(String, String)>,
    flags: Vec<(&'static str, String)>,
}

/// Where a setting was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Default,
    File { path: PathBuf, line: Option<usize> },
    Variable(String),
    Flag(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("its default"),
            Self::File { path, line: Some(line) } => write!(f, "{}, line {line}", path.display()),
            Self::File { path, line: None } => write!(f, "{}", path.display()),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

impl Sources {
    pub fn with_file(self, path: &Path) -> Result<Self, SettingsError> {
        let text = fs::read_to_string(path).map_err(|source| SettingsError::Read { path: path.to_owned(), source })?;
        Ok(self.with_file_text(path, text))
    }

    pub fn with_file_text(self, path: &Path, text: String) -> Self {
        Self { file: Some((path.to_owned(), text)), ..self }
    }

    /// Takes those that are ours and settings; the others are passed over.
    pub fn with_variables(
        mut self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, SettingsError> {
        for (variable, value) in variables {
            let Some(variable) = variable.to_str() else { continue };
            if !is_setting(variable) {
                continue;
            }
            let Ok(value) = value.into_string() else {
                return Err(SettingsError::Wrong {
                    key: variable[VARIABLE_PREFIX.len()..].to_ascii_lowercase(),
                    place: Place::Variable(variable.to_owned()),
                    reason: "is not UTF-8".to_owned(),
                });
            };
            self.variables.push((variable.to_owned(), value));
        }
        Ok(self)
    }

    /// A list is given by naming its key several times.
    pub fn with_flags(self, flags: Vec<(&'static str, String)>) -> Self {
        Self { flags, ..self }
    }

    pub(super) fn layers(&self) -> Result<Figment, SettingsError> {
        let mut figment = Figment::new().merge(Layer::new(DEFAULTS, defaults()?));
        if let Some((path, text)) = &self.file {
            figment = figment.merge(Layer::new(FILE, read_toml(path, text)?));
        }
        Ok(figment.merge(Layer::new(VARIABLES, self.variables()?)).merge(Layer::new(FLAGS, self.flags()?)))
    }

    pub(super) fn place(&self, key: &str, metadata: Option<&Metadata>) -> Place {
        match (metadata.map(|metadata| metadata.name.as_ref()), &self.file) {
            (Some(FILE), Some((path, text))) => Place::File { path: path.clone(), line: line_of(key, text) },
            (Some(VARIABLES), _) => Place::Variable(keys::variable(key)),
            (Some(FLAGS), _) => Place::Flag(flag_of(key)),
            (Some(_) | None, _) => Place::Default,
        }
    }

    /// A secret in a file that everyone may read is no secret.
    pub(super) fn refuse_open_file(&self, key: &'static str, metadata: Option<&Metadata>) -> Result<(), SettingsError> {
        let Place::File { path, .. } = self.place(key, metadata) else { return Ok(()) };
        match readable_by_all(&path) {
            Ok(true) => Err(SettingsError::TooOpen { path, key }),
            Ok(false) => Ok(()),
            Err(source) => Err(SettingsError::Read { path, source }),
        }
    }

    fn variables(&self) -> Result<Dict, SettingsError> {
        let mut dict = Dict::new();
        for (variable, text) in &self.variables {
            let key = variable[VARIABLE_PREFIX.len()..].to_ascii_lowercase();
            let value = read_text(&key, [text.as_str()]).map_err(|reason| SettingsError::Wrong {
                key: key.clone(),
                place: Place::Variable(variable.clone()),
                reason,
            })?;
            dict.insert(key, value);
        }
        Ok(dict)
    }

    fn flags(&self) -> Result<Dict, SettingsError> {
        let mut dict = Dict::new();
        for (key, _) in &self.flags {
            let given = self.flags.iter().filter(|(other, _)| other == key).map(|(_, text)| text.as_str());
            let value = read_text(key, given).map_err(|reason| SettingsError::Wrong {
                key: (*key).to_owned(),
                place: Place::Flag(flag_of(key)),
                reason,
            })?;
            dict.insert((*key).to_owned(), value);
        }
        Ok(dict)
    }
}

/// Whether users other than the owner and the group can reach a file; on systems without such bits, no.
pub(crate) fn readable_by_all(path: &Path) -> io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        Ok(fs::metadata(path)?.permissions().mode() & 0o007 != 0)
    }
    #[cfg(not(unix))]
    {
        fs::metadata(path).map(|_| false)
    }
}

struct Layer {
    name: &'static str,
    values: Dict,
}

impl Layer {
    fn new(name: &'static str, values: Dict) -> Self {
        Self { name, values }
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name)
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.values.clone()))
    }
}

fn defaults() -> Result<Dict, SettingsError> {
    KEYS.iter()
        .filter_map(|key| key.default.map(|text| (key.name, text)))
        .map(|(name, text)| match read_text(name, [text]) {
            Ok(value) => Ok((name.to_owned(), value)),
            Err(reason) => Err(SettingsError::Wrong { key: name.to_owned(), place: Place::Default, reason }),
        })
        .collect()
}

fn read_toml(path: &Path, text: &str) -> Result<Dict, SettingsError> {
    Toml::from_str(text).map_err(|error| SettingsError::Syntax {
        path: path.to_owned(),
        // The parser's own display quotes the line, and the line may hold a secret.
        line: error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1),
        // For characters that TOML does not know at all, the parser gives no reason.
        message: Some(error.message()).filter(|message| !message.is_empty()).unwrap_or("this is not TOML").to_owned(),
    })
}

/// Gives text the type that the key has in the file.
fn read_text<'a>(key: &str, texts: impl IntoIterator<Item = &'a str>) -> Result<Value, String> {
    let mut texts = texts.into_iter();
    let form = keys::find(key).map_or(Form::Text, |key| key.form);
    if form == Form::List {
        let items = texts.flat_map(|text| text.split(',')).map(str::trim).filter(|item| !item.is_empty());
        return Ok(Value::from(items.map(str::to_owned).collect::<Vec<_>>()));
    }
    if form == Form::Outboxes {
        let given: Vec<&str> = texts.map(str::trim).collect();
        return Ok(match given[..] {
            [json] if json.starts_with('[') => Value::from(json),
            // No comma parts them: an address may name several hosts.
            _ => Value::from(given),
        });
    }
    let text = texts.next().unwrap_or_default();
    match form {
        Form::Text | Form::List | Form::Rules | Form::Outboxes => Ok(Value::from(text)),
        Form::Switch => match text {
            "true" => Ok(Value::from(true)),
            "false" => Ok(Value::from(false)),
            other => Err(format!("`{other}` is neither `true` nor `false`")),
        },
        Form::Number => {
            text.parse::<u64>().map(Value::from).map_err(|_| format!("`{text}` is not a whole number of at least 0"))
        }
    }
}

fn is_setting(variable: &str) -> bool {
    let Some(name) = variable.strip_prefix(VARIABLE_PREFIX) else { return false };
    !OTHER_VARIABLES.contains(&name) && !KUBERNETES.iter().any(|prefix| name.starts_with(prefix)) && name != "PORT"
}

fn line_of(key: &str, text: &str) -> Option<usize> {
    let names_key = |line: &str| {
        let line = line.trim_start().trim_start_matches(['[', '"', '\'']);
        line.strip_prefix(key).is_some_and(|rest| rest.starts_with(['=', ' ', '\t', ']', '.', '"', '\'']))
    };
    text.lines().position(names_key).map(|index| index + 1)
}

fn flag_of(key: &str) -> String {
    keys::find(key).and_then(|key| key.flag).map_or_else(|| format!("--{key}"), str::to_owned)
}

const DEFAULTS: &str = "defaults";
const FILE: &str = "file";
const VARIABLES: &str = "variables";
const FLAGS: &str = "flags";

/// Ours, but no settings: where the settings are, and what the commands that talk to a server need.
const OTHER_VARIABLES: [&str; 5] = ["CONFIG", "URL", "TOKEN", "SECRET", "OUTBOX_URL"];

/// Kubernetes sets these in every pod when a service is called `postrider`.
const KUBERNETES: [&str; 2] = ["SERVICE_", "PORT_"];

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    fn sources(file: &str, variables: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Sources {
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        Sources::default()
            .with_file_text(Path::new("postrider.toml"), file.to_owned())
            .with_variables(variables)
            .expect("the variables are text")
            .with_flags(flags.iter().map(|(key, value)| (*key, (*value).to_owned())).collect())
    }

    fn load(file: &str, variables: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Result<Settings, String> {
        Settings::load(&sources(file, variables, flags)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_last_place_that_names_a_setting_wins() {
        let file = "log = \"debug\"";
        let variable = ("POSTRIDER_LOG", "warn");
        let flag = ("log", "error");
        for (file, variables, flags, expected) in [
            ("", &[][..], &[][..], "info"),
            (file, &[], &[], "debug"),
            (file, &[variable], &[], "warn"),
            (file, &[variable], &[flag], "error"),
            (file, &[], &[flag], "error"),
            ("", &[variable], &[flag], "error"),
        ] {
            assert_eq!(load(file, variables, flags).map(|settings| settings.log), Ok(expected.to_owned()));
        }
    }

    #[test]
    fn a_list_is_replaced_as_a_whole() {
        let subnets = |file: &str, variables: &[_], flags: &[_]| {
            let settings = load(file, variables, flags).expect("valid");
            settings.allow_subnets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let file = "allow_subnets = [\"10.0.0.0/8\", \"fd00::/8\"]";
        let variable = ("POSTRIDER_ALLOW_SUBNETS", "192.168.0.0/16, 172.16.0.0/12,");
        assert_eq!(subnets("", &[], &[]), "");
        assert_eq!(subnets(file, &[], &[]), "10.0.0.0/8 fd00::/8");
        assert_eq!(subnets(file, &[variable], &[]), "192.168.0.0/16 172.16.0.0/12");
        let flags = [("allow_subnets", "127.0.0.0/8"), ("allow_subnets", "::1/128")];
        assert_eq!(subnets(file, &[variable], &flags), "127.0.0.0/8 ::1/128");
    }

    #[test]
    fn what_concerns_nodes_is_refused_where_there_are_none() {
        for (name, value) in [("node_name", "north"), ("lease", "5s"), ("database_ca_file", "ca.pem")] {
            let alone = load("", &[], &[(name, value)]).err().expect(name);
            assert!(alone.contains(&format!("`{name}`")) && alone.contains("without `database_url`"), "{alone}");
            let line = format!("{name} = \"{value}\"");
            assert!(load(&line, &[], &[]).is_err(), "{line}");
            load("", &[("POSTRIDER_DATABASE_URL", "postgres://u@localhost/hooks")], &[(name, value)]).expect(name);
        }
    }

    #[test]
    fn every_default_holds_without_any_source() {
        let settings = Settings::defaults();
        assert_eq!(settings.listen.to_string(), "127.0.0.1:8071");
        assert_eq!(settings.data, Path::new("./postrider-data"));
        assert_eq!(settings.body_max, 1 << 20);
        assert_eq!(settings.retention_payloads.as_secs(), 90 * 86_400);
        assert_eq!(settings.retention_dead_letters.as_secs(), 30 * 86_400);
        assert_eq!(settings.shutdown_grace.as_secs(), 30);
        assert!(settings.allow_subnets.is_empty() && !settings.https_only);
    }

    #[test]
    fn an_unknown_setting_is_named_with_its_place_and_its_neighbour() {
        for (file, variables, expected) in [
            (
                "data = \"x\"\nlistne = \"127.0.0.1:1\"",
                &[][..],
                "unknown setting `listne` (postrider.toml, line 2); did you mean `listen`?",
            ),
            ("\n[lisen]\nport = 1", &[], "unknown setting `lisen` (postrider.toml, line 2); did you mean `listen`?"),
            (
                "",
                &[("POSTRIDER_BODY_MAXX", "1")],
                "unknown setting `body_maxx` (variable POSTRIDER_BODY_MAXX); did you mean `body_max`?",
            ),
        ] {
            assert_eq!(load(file, variables, &[]).err().expect(file), expected);
        }
    }

    #[test]
    fn variables_that_are_not_settings_are_passed_over() {
        let variables = [
            ("POSTRIDER_URL", "http://x"),
            ("POSTRIDER_TOKEN", "x"),
            ("POSTRIDER_SECRET", "x"),
            ("POSTRIDER_OUTBOX_URL", "postgres://x"),
            ("POSTRIDER_PORT", "tcp://10.0.0.1:8071"),
            ("POSTRIDER_PORT_8071_TCP", "tcp://10.0.0.1:8071"),
            ("POSTRIDER_SERVICE_HOST", "10.0.0.1"),
            ("PATH", "/bin"),
        ];
        assert!(load("", &variables, &[]).is_ok());
    }

    #[test]
    fn a_wrong_value_is_named_with_its_place() {
        for (file, expected) in [
            ("retention_payloads = 10", "setting `retention_payloads` (postrider.toml, line 1): invalid type"),
            ("retention_payloads = \"10\"", "setting `retention_payloads` (postrider.toml, line 1): `10` has no unit"),
            ("retention_payloads = \"-1s\"", "`-1s` is negative"),
            ("retention_payloads = \"1e9d\"", "`1e9d` is not a duration"),
            ("retention_payloads = \"59m\"", "must be at least 1h"),
            ("retention_dead_letters = \"59m\"", "must be at least 1h"),
            ("[rules]\nretryPolicy = \"nobody\"", "there is no preset `nobody`"),
            ("[rules]\nmaxInFlight = 0", "maxInFlight must be from 1 to 1000"),
            ("[rules]\ntimeouts = { total = \"61s\" }", "timeouts.total must be from"),
            ("shutdown_grace = \"2h\"", "must be at most 1h"),
            ("listen = 8071", "setting `listen` (postrider.toml, line 1): invalid type"),
            ("listen = \"localhost\"", "setting `listen`"),
            ("https_only = \"true\"", "setting `https_only` (postrider.toml, line 1): invalid type"),
            ("body_max = \"1\"", "must be between 1KiB and 64MiB"),
            ("body_max = -1", "setting `body_max`"),
            ("connections_max = 0", "must be at least 1"),
            ("connections_per_address_max = 0", "must be at least 1"),
            ("ingest_rate_per_application = 0", "must be between 1 and 1000000"),
            ("ingest_rate_per_token = 1000001", "must be between 1 and 1000000"),
            ("allow_subnets = [\"10.0.0.0/8\", \"ten\"]", "setting `allow_subnets` (postrider.toml, line 1)"),
            ("allow_subnets = \"10.0.0.0/8\"", "setting `allow_subnets`"),
            ("database_url = \"mysql://x\"", "setting `database_url` (postrider.toml, line 1): not the address of"),
            ("database_url = \"postgres://h/d?sslmod=require\"", "unknown option `sslmod`"),
            ("database_url = \"postgres:///d\"", "it names no host"),
            ("node_name = \"\"", "must be one line of up to 40 characters"),
            ("node_name = \"a\\nb\"", "must be one line of up to 40 characters"),
            ("lease = \"999ms\"", "must be between 1s and 60s"),
            ("lease = \"61s\"", "must be between 1s and 60s"),
            ("public_url = \"ftp://x\"", "must begin with http"),
            ("portal_frames = [\"https://a.example\"]", "needs TLS"),
            ("public_url = \"https://x\"\nportal_frames = [\"https://a.example/\"]", "is not a site"),
            ("public_url = \"https://x\"\nportal_frames = [\"https://a; script-src *\"]", "is not a site"),
            ("public_url = \"https://x\"\nportal_frames = [\"*\"]", "is not a site"),
            ("public_url = \"https://x\"\nportal_frames = [\"http://a.example\"]", "must begin with https://"),
            (
                "public_url = \"https://x\"\nportal_frames = [\"http://localhost.a.example\"]",
                "must begin with https://",
            ),
            ("public_url = \"http://a:b@x/\"", "without user"),
            ("log_format = \"xml\"", "setting `log_format`"),
            ("log = \"postrider=loud\"", "setting `log`"),
            ("jwt_algorithm = \"none\"", "setting `jwt_algorithm`"),
            ("jwt_algorithm = \"hs256\"", "setting `jwt_algorithm`"),
            ("jwt_algorithm = \"RS256\"", "needs jwt_public_key_file"),
            ("jwt_public_key_file = \"x\"", "takes a secret, not a key pair"),
            ("jwt_private_key_file = \"x\"", "takes a secret, not a key pair"),
            ("jwt_secret = \"0123456789012345678901234567890\"", "at least 32 bytes"),
            ("jwt_algorithm = \"EdDSA\"\njwt_secret = \"x\"", "takes a key pair, not a secret"),
            ("listen = ", "postrider.toml, line 1: "),
            ("data = \"a\"\ndata = \"b\"", "postrider.toml, line 2: duplicate key"),
        ] {
            let error = load(file, &[], &[]).err().expect(file);
            assert!(error.contains(expected), "{file}: {error}");
        }
    }

    #[test]
    fn a_wrong_variable_or_flag_is_named_too() {
        for (variables, flags, expected) in [
            (&[("POSTRIDER_HTTPS_ONLY", "yes")][..], &[][..], "(variable POSTRIDER_HTTPS_ONLY): `yes` is neither"),
            (&[("POSTRIDER_CONNECTIONS_MAX", "-1")], &[], "(variable POSTRIDER_CONNECTIONS_MAX): `-1` is not a whole"),
            (
                &[("POSTRIDER_RETENTION_ATTEMPTS", "10")],
                &[],
                "(variable POSTRIDER_RETENTION_ATTEMPTS): `10` has no unit",
            ),
            (&[], &[("allow_subnets", "x")], "(flag --allow-subnet)"),
        ] {
            let error = load("", variables, flags).err().expect(expected);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn outboxes_are_named_in_the_file_a_variable_or_flags() {
        let names = |file: &str, variables: &[_], flags: &[_]| {
            // Looked at for who may read it.
            let written = tempfile::NamedTempFile::new().expect("a file that nobody else may read");
            let sources = sources("", variables, flags).with_file_text(written.path(), file.to_owned());
            let settings = Settings::load(&sources).expect("valid");
            let shown = settings.outboxes.iter().map(|it| format!("{}/{} {}", it.name, it.schema, it.url));
            shown.collect::<Vec<_>>().join(", ")
        };
        let file = "[[outboxes]]\nname = \"shop\"\nurl = \"postgres://a@h/b\"\nschema = \"hooks\"\n
                    [[outboxes]]\nurl = \"postgres://a@h/c\"";
        assert_eq!(names("", &[], &[]), "");
        assert_eq!(names(file, &[], &[]), "shop/hooks b on h:5432, c/postrider c on h:5432");
        let json = ("POSTRIDER_OUTBOXES", r#" [{"url": "postgres://a@h/d"}, "postgres://a@h/e"]"#);
        assert_eq!(names(file, &[json], &[]), "d/postrider d on h:5432, e/postrider e on h:5432");
        let plain = ("POSTRIDER_OUTBOXES", "postgres://a@h,i/f");
        assert_eq!(names("", &[plain], &[]), "f/postrider f on h:5432 or i:5432");
        let flags = [("outboxes", "postgres://a@h/g"), ("outboxes", "postgres://a@h/i")];
        assert_eq!(names(file, &[json], &flags), "g/postrider g on h:5432, i/postrider i on h:5432");
        for (file, expected) in [
            ("outboxes = [\"postgres://a@h/b\", \"postgres://a@i/b\"]", "two are called `b`"),
            ("outboxes = [\"mysql://a@h/b\"]", "must begin with postgres://"),
            ("outboxes = 7", "must be a list of addresses"),
            ("[[outboxes]]\nurl = \"postgres://a@h/b\"\nscheme = \"x\"", "must be a list of addresses"),
            ("[[outboxes]]\nurl = \"postgres://a@h/b\"\nschema = \"X\"", "a schema's name must be"),
            ("[[outboxes]]\nurl = \"postgres://a@h/b\"\nname = \"x y\"", "`name` must be"),
        ] {
            let error = load(file, &[], &[]).err().expect(file);
            assert!(error.contains(expected) && error.contains("`outboxes` (postrider.toml, line 1)"), "{error}");
        }
    }

    #[test]
    fn a_database_is_shown_without_its_password() {
        for (variables, shown) in [
            (&[][..], "None"),
            (&[("POSTRIDER_DATABASE_URL", "postgres://u:p%40ss@db:5433/hooks")], "Some(DatabaseUrl(hooks on db:5433))"),
            (&[("POSTRIDER_DATABASE_URL", "postgresql://u:p@db/")], "Some(DatabaseUrl("),
        ] {
            let settings = load("", variables, &[]).expect("valid");
            let told = format!("database_url: {:?}", settings.database_url);
            assert!(told.contains(&format!("database_url: {shown}")), "{told}");
            assert!(!told.contains("p@ss") && !told.contains("p%40ss"), "{told}");
        }
    }

    #[test]
    fn a_node_is_called_like_its_machine_unless_it_has_a_name() {
        assert!(!load("", &[], &[]).expect("valid").node_name.is_empty());
        let database = ("database_url", "postgres://u@localhost/hooks");
        assert_eq!(load("", &[], &[database, ("node_name", "left")]).expect("valid").node_name, "left");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_with_a_secret_that_everyone_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("postrider.toml");
        for (text, secret) in [
            ("database_url = \"postgres://u:p@h/d\"", true),
            ("jwt_secret = \"01234567890123456789012345678901\"", true),
            ("log = \"info\"", false),
        ] {
            fs::write(&path, text).expect("written");
            for (mode, open) in [(0o644, true), (0o640, false)] {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("changed");
                let loaded = Settings::load(&Sources::default().with_file(&path).expect("read"));
                let refused = matches!(loaded, Err(SettingsError::TooOpen { .. }));
                assert_eq!(refused, secret && open, "{text} {mode:o}");
            }
        }
    }

    #[test]
    fn no_error_shows_a_secret() {
        let canary = "7306092581937";
        for file in [
            format!("outboxes = [\"postgres://a:{canary}@h:x/b\"]"),
            format!("outboxes = [\"mysql://a:{canary}@h/b\"]"),
            format!("outboxes = \"postgres://a:{canary}@h/b\""),
            format!("outboxes = [{{ uri = \"postgres://a:{canary}@h/b\" }}]"),
            format!("jwt_secret = {canary}"),
            format!("jwt_secret = \"{canary}\""),
            format!("jwt_secret = \"{canary}"),
            format!("jwt_secret = [\"{canary}\"]"),
            format!("database_url = {canary}"),
            format!("database_url = [\"{canary}\"]"),
            format!("database_url = \"{canary}\""),
            format!("database_url = \"postgres://u:{canary}/d\""),
            format!("database_url = \"postgres://u:a@{canary}@h/d\""),
            format!("database_url = \"postgres://u:a?{canary}=x@h/d\""),
            format!("database_url = \"postgres://u:a@b?{canary}=x@h/d\""),
            format!("database_url = \"postgres://u:a#{canary}@h/d\""),
            format!("database_url = \"postgres://u:{canary}@h:port/d\""),
            format!("database_url = \"postgres://h/d?password={canary}&sslmod=x\""),
            format!("database_url = \"postgres://u:%ff{canary}@h/d?x\""),
        ] {
            let error = Settings::load(&sources(&file, &[], &[])).err().expect(&file);
            let told = format!("{error} {error:?}");
            assert!(!told.contains(canary), "{told}");
        }
    }
}
