//! The operations of the API, as its own document tells them.

use serde_json::{Map, Value, json};

pub struct Operation {
    pub method: String,
    pub path: String,
    pub name: String,
    /// The least that is taken.
    pub body: Value,
}

impl Operation {
    pub fn all(document: &Value) -> Vec<Self> {
        let mut all = Vec::new();
        for (path, methods) in document["paths"].as_object().expect("paths") {
            for (method, operation) in methods.as_object().expect("methods") {
                let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
                let body = if schema.is_null() { Value::Null } else { example(document, schema) };
                let name = operation["operationId"].as_str().unwrap_or_default().to_owned();
                all.push(Self { method: method.to_uppercase(), path: path.clone(), name, body });
            }
        }
        all
    }
}

/// A path with these in the place of its parameters, and something or other for the rest.
pub fn filled_with(path: &str, values: &[(&str, &str)]) -> String {
    let mut filled = path.to_owned();
    for (name, value) in values {
        filled = filled.replace(name, value);
    }
    while let (Some(from), Some(to)) = (filled.find('{'), filled.find('}')) {
        filled.replace_range(from..=to, "something");
    }
    filled
}

/// The least that a schema asks for.
fn example(document: &Value, schema: &Value) -> Value {
    if let Some(place) = schema["$ref"].as_str() {
        let schema = document.pointer(place.trim_start_matches('#')).expect("it leads somewhere");
        return example(document, schema);
    }
    for several in ["allOf", "oneOf", "anyOf"] {
        if let Some(first) = schema[several].as_array().and_then(|list| list.iter().find(|it| it["type"] != "null")) {
            return example(document, first);
        }
    }
    if let Some(first) = schema["enum"].as_array().and_then(|list| list.first()) {
        return first.clone();
    }
    if !schema["example"].is_null() {
        return schema["example"].clone();
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"].as_array()?.first()?.as_str());
    match kind {
        Some("string") => match schema["format"].as_str() {
            Some("date-time") => json!("2026-11-16T00:00:00Z"),
            Some("uri") => json!("https://example.com/"),
            _ => json!("something"),
        },
        Some("integer" | "number") => schema["minimum"].as_i64().map_or(json!(1), |least| json!(least)),
        Some("boolean") => json!(false),
        Some("array") => json!([]),
        _ => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let fields = required.map(|name| (name.to_owned(), example(document, &schema["properties"][name])));
            Value::Object(fields.collect::<Map<_, _>>())
        }
    }
}
