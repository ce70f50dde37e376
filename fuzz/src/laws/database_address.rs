//! The address of a database: whatever it says, it shows no password, and nothing that is not encrypted is taken for
//! encrypted.

use postrider_store::postgres::DatabaseUrl;

pub fn check(data: &[u8]) {
    // The fuzzer learns the word, and may put it where it is no secret.
    let Some(text) = std::str::from_utf8(data).ok().filter(|text| !text.contains(SECRET)) else { return };
    if let Ok(url) = text.parse::<DatabaseUrl>() {
        let shown = url.to_string();
        assert!(shown.contains(" on "), "{shown}");
        assert_eq!(format!("{url:?}"), format!("DatabaseUrl({shown})"));
        assert!(text.starts_with("postgres://") || text.starts_with("postgresql://"), "{text}");
        let wishes =
            text.rsplit_once('@').map_or(text, |(_, rest)| rest).split_once('?').map_or("", |(_, wishes)| wishes);
        for unchecked in ["sslmode=prefer", "sslmode=allow", "sslmode=verify-ca", "sslrootcert="] {
            assert!(!wishes.split('&').any(|wish| wish.starts_with(unchecked)), "{text}");
        }
    }
    for tail in [text.to_owned(), format!("@{text}"), format!("@host/{text}"), format!("@host/db?{text}")] {
        let address = format!("postgres://user:{SECRET}{tail}");
        // Without an @ there is no password in it.
        if !tail.starts_with('@') {
            let _ = address.parse::<DatabaseUrl>();
            continue;
        }
        let shown = match address.parse::<DatabaseUrl>() {
            Ok(url) => url.to_string(),
            Err(error) => error.to_string(),
        };
        assert!(!shown.contains(SECRET), "{address}: {shown}");
    }
}

const SECRET: &str = "nobody-may-read-this";
