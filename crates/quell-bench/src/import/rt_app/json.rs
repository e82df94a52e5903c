//! JSON as rt-app and its workgen read it: with comments, trailing commas, repeated keys, and events without
//! a value. Every value knows its line, and keys keep their order.

use anyhow::bail;
use jsonc_parser::Scanner;
use jsonc_parser::tokens::Token;

/// Values nested deeper than this are mistakes.
const MAX_DEPTH: usize = 32;

/// A value, and the line on which it begins, from 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Json {
    pub line: usize,
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Number(f64),
    Text(String),
    Bool(bool),
    Null,
    /// A key with nothing behind it: `"suspend",`.
    Missing,
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads a text.
    ///
    /// # Errors
    /// Where the text is not such JSON, nests values deeper than [`MAX_DEPTH`], or goes on after its first
    /// value.
    pub fn parse(text: &str) -> anyhow::Result<Json> {
        let mut reader = Reader {
            scanner: Scanner::new(text),
            text,
            ahead: None,
            lines: (0, 1),
        };
        reader.advance()?;
        let value = reader.value(0)?;
        let line = reader.line();
        match &reader.ahead {
            None => Ok(value),
            Some(token) => bail!(
                "line {line}: `{}` comes after the end of the file's object",
                token.as_str().escape_debug()
            ),
        }
    }

    /// An object's keys and their values; of any other value, nothing.
    pub fn entries(&self) -> &[(String, Json)] {
        match &self.value {
            Value::Object(entries) => entries,
            _ => &[],
        }
    }

    /// The first value of this key.
    pub fn get(&self, key: &str) -> Option<&Json> {
        let mut entries = self.entries().iter();
        entries
            .find(|(name, _)| name == key)
            .map(|(_, value)| value)
    }

    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

struct Reader<'a> {
    scanner: Scanner<'a>,
    text: &'a str,
    /// The token that comes next.
    ahead: Option<Token<'a>>,
    /// An offset in the text, and its line.
    lines: (usize, usize),
}

impl<'a> Reader<'a> {
    /// The line of the token that comes next.
    fn line(&mut self) -> usize {
        let at = self.scanner.token_start().min(self.text.len());
        let (from, line) = self.lines;
        let passed = &self.text.as_bytes()[from.min(at)..at];
        self.lines = (
            at,
            line + passed.iter().filter(|&&byte| byte == b'\n').count(),
        );
        self.lines.1
    }

    fn advance(&mut self) -> anyhow::Result<()> {
        loop {
            match self.scanner.scan() {
                Ok(Some(Token::CommentLine(_) | Token::CommentBlock(_))) => {}
                Ok(token) => {
                    self.ahead = token;
                    return Ok(());
                }
                Err(error) => bail!("line {}: {}", error.line_display(), error.kind()),
            }
        }
    }

    fn take(&mut self) -> anyhow::Result<Option<Token<'a>>> {
        let token = self.ahead.take();
        self.advance()?;
        Ok(token)
    }

    /// Takes this token if it comes next; whether it did.
    fn skip(&mut self, token: Token<'static>) -> anyhow::Result<bool> {
        let comes = self.ahead.as_ref() == Some(&token);
        if comes {
            self.advance()?;
        }
        Ok(comes)
    }

    fn value(&mut self, depth: usize) -> anyhow::Result<Json> {
        let line = self.line();
        if depth > MAX_DEPTH {
            bail!("line {line}: is nested more than {MAX_DEPTH} deep");
        }
        let value = match self.take()? {
            Some(Token::OpenBrace) => self.object(depth)?,
            Some(Token::OpenBracket) => {
                let mut list = Vec::new();
                while !self.skip(Token::CloseBracket)? {
                    list.push(self.value(depth + 1)?);
                    self.comma(&Token::CloseBracket)?;
                }
                Value::List(list)
            }
            Some(Token::String(text)) => Value::Text(text.into_owned()),
            Some(Token::Number(number)) => match number.parse() {
                Ok(number) => Value::Number(number),
                Err(_) => bail!("line {line}: `{number}` is no number that rt-app reads"),
            },
            Some(Token::Boolean(value)) => Value::Bool(value),
            Some(Token::Null) => Value::Null,
            Some(Token::Word(word)) => {
                bail!("line {line}: `{word}` is no value; a text stands in quotes")
            }
            Some(token) => bail!(
                "line {line}: a value is missing before `{}`",
                token.as_str()
            ),
            None => bail!("line {line}: the file ends where a value should come"),
        };
        Ok(Json { line, value })
    }

    fn object(&mut self, depth: usize) -> anyhow::Result<Value> {
        let mut entries = Vec::new();
        while !self.skip(Token::CloseBrace)? {
            let line = self.line();
            let key = match self.take()? {
                Some(Token::String(key)) => key.into_owned(),
                Some(token) => bail!(
                    "line {line}: `{}` stands where a key in quotes should",
                    token.as_str().escape_debug()
                ),
                None => bail!("line {line}: the file ends within an object; a `}}` is missing"),
            };
            let value = if self.skip(Token::Colon)? {
                Json {
                    line,
                    ..self.value(depth + 1)?
                }
            } else if matches!(self.ahead, Some(Token::Comma | Token::CloseBrace)) {
                Json {
                    line,
                    value: Value::Missing,
                }
            } else {
                bail!(
                    "line {line}: a `:` is missing behind \"{}\"",
                    key.escape_debug()
                );
            };
            entries.push((key, value));
            self.comma(&Token::CloseBrace)?;
        }
        Ok(Value::Object(entries))
    }

    /// Takes the comma between two items; a comma may stand behind the last item, too.
    fn comma(&mut self, end: &Token<'static>) -> anyhow::Result<()> {
        if self.skip(Token::Comma)? || self.ahead.as_ref() == Some(end) {
            return Ok(());
        }
        let line = self.line();
        match &self.ahead {
            Some(token) => bail!(
                "line {line}: a comma is missing before `{}`",
                token.as_str().escape_debug()
            ),
            None => bail!(
                "line {line}: the file ends early; a `{}` is missing",
                end.as_str()
            ),
        }
    }
}
