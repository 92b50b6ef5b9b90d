//! Reads JSON as our benches and cargo print it. Small on purpose: this crate builds before anything else, on every machine.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

impl Json {
    pub fn parse(text: &str) -> anyhow::Result<Json> {
        let mut reader = Reader { rest: text };
        let value = reader.value()?;
        reader.space();
        if !reader.rest.is_empty() {
            bail!("there is more after the value: {}", reader.near());
        }
        Ok(value)
    }

    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(fields) => fields.get(key),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::List(_) => None,
        }
    }

    pub fn text(&self) -> Option<&str> {
        if let Json::Text(text) = self { Some(text) } else { None }
    }

    pub fn number(&self) -> Option<f64> {
        if let Json::Number(number) = self { Some(*number) } else { None }
    }

    /// What stands at the end of a path. A part is a key, several keys as `a|b`, or `key=value`, which an object says of itself or
    /// items of a list do.
    pub fn at(&self, path: &[&str]) -> Vec<&Json> {
        let Some((part, rest)) = path.split_first() else { return vec![self] };
        let next: Vec<&Json> = match (self, part.split_once('=')) {
            (Json::List(items), Some((key, value))) => items.iter().filter(|item| item.says(key, value)).collect(),
            (_, Some((key, value))) => Some(self).filter(|object| object.says(key, value)).into_iter().collect(),
            (_, None) => part.split('|').filter_map(|key| self.get(key)).collect(),
        };
        next.into_iter().flat_map(|value| value.at(rest)).collect()
    }

    fn says(&self, key: &str, value: &str) -> bool {
        self.get(key).and_then(Json::text) == Some(value)
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn value(&mut self) -> anyhow::Result<Json> {
        self.space();
        match self.rest.chars().next().context("a value is missing at the end")? {
            '{' => self.object(),
            '[' => self.list(),
            '"' => self.string().map(Json::Text),
            't' => self.word("true", Json::Bool(true)),
            'f' => self.word("false", Json::Bool(false)),
            'n' => self.word("null", Json::Null),
            _ => self.number(),
        }
    }

    fn object(&mut self) -> anyhow::Result<Json> {
        let mut fields = BTreeMap::new();
        self.expect('{')?;
        while !self.take('}') {
            if !fields.is_empty() {
                self.expect(',')?;
            }
            self.space();
            let key = self.string()?;
            self.expect(':')?;
            fields.insert(key, self.value()?);
        }
        Ok(Json::Object(fields))
    }

    fn list(&mut self) -> anyhow::Result<Json> {
        let mut items = Vec::new();
        self.expect('[')?;
        while !self.take(']') {
            if !items.is_empty() {
                self.expect(',')?;
            }
            items.push(self.value()?);
        }
        Ok(Json::List(items))
    }

    fn string(&mut self) -> anyhow::Result<String> {
        self.expect('"')?;
        let mut text = String::new();
        loop {
            match self.next()? {
                '"' => return Ok(text),
                '\\' => match self.next()? {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{c}'),
                    'u' => {
                        let digits = self.rest.get(..4).context("an escape is cut off")?;
                        let code =
                            u32::from_str_radix(digits, 16).with_context(|| format!("\\u{digits} is no character"))?;
                        self.rest = &self.rest[4..];
                        // Halves of a pair do not occur in keys and names of ours.
                        text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    other => text.push(other),
                },
                other => text.push(other),
            }
        }
    }

    fn number(&mut self) -> anyhow::Result<Json> {
        let end =
            self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c))).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        let number = digits.parse().with_context(|| format!("no value: {}", self.near()))?;
        self.rest = rest;
        Ok(Json::Number(number))
    }

    fn word(&mut self, word: &str, value: Json) -> anyhow::Result<Json> {
        self.rest = self.rest.strip_prefix(word).with_context(|| format!("no value: {}", self.near()))?;
        Ok(value)
    }

    fn next(&mut self) -> anyhow::Result<char> {
        let next = self.rest.chars().next().context("a text is cut off")?;
        self.rest = &self.rest[next.len_utf8()..];
        Ok(next)
    }

    fn take(&mut self, wanted: char) -> bool {
        self.space();
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, wanted: char) -> anyhow::Result<()> {
        if !self.take(wanted) {
            bail!("`{wanted}` is missing before: {}", self.near());
        }
        Ok(())
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn near(&self) -> String {
        self.rest.chars().take(30).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_benches_print_is_read() {
        let text = r#"{"rows": [{"name": "dense", "ratio": 8.25}, {"name": "sparse", "ratio": -1e3}], "a+b": {"p99": 2}, "c": {"p99": 3},
                       "say": "\"\u0041\n", "none": null, "yes": true, "empty": [], "nothing": {}}"#;
        let json = Json::parse(text).unwrap();
        let numbers = |path: &[&str]| json.at(path).into_iter().filter_map(Json::number).collect::<Vec<_>>();
        assert_eq!(numbers(&["rows", "name=dense", "ratio"]), [8.25]);
        assert_eq!(numbers(&["rows", "name=sparse", "ratio"]), [-1000.0]);
        assert_eq!(numbers(&["a+b|c", "p99"]), [2.0, 3.0]);
        assert_eq!(numbers(&["no", "such"]), []);
        assert_eq!(numbers(&["a+b", "p99=2", "p99"]), [], "only texts are compared");
        assert_eq!(json.at(&["rows", "name=dense", "name=dense"]).len(), 1);
        assert_eq!(json.get("say").and_then(Json::text), Some("\"A\n"));
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in ["", "{", "[1 2]", "{\"a\" 1}", "baseline: 5", "{} {}", "\"open", "tru"] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
    }
}
