/* A reader of JSON (RFC 8259) for the short answers of the control plane. */
#include "cs_base.h"

#include <string.h>

/* MAX_DEPTH bounds the recursion: answers have objects in an array in an object. */
enum { MAX_DEPTH = 8 };

struct reader {
	const char *at, *end;
};

static void blanks(struct reader *r)
{
	while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
		r->at++;
}

static int take(struct reader *r, char c)
{
	if (r->at >= r->end || *r->at != c)
		return 0;
	r->at++;
	return 1;
}

static int hexadecimal(struct reader *r, unsigned *code)
{
	uint8_t two[2];
	char text[5] = {0};

	if (r->end - r->at < 4)
		return -1;
	memcpy(text, r->at, 4);
	if (cs_unhex(text, two, sizeof two))
		return -1;
	r->at += 4;
	*code = (unsigned)two[0] << 8 | two[1];
	return 0;
}

/* escape reads what follows a backslash; a pair of surrogates makes one code. */
static int escape(struct reader *r, unsigned *code)
{
	static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
	const char *known;
	unsigned low;

	if (r->at >= r->end)
		return -1;
	char c = *r->at++;

	if (c != 'u') {
		known = c ? strchr(names, c) : NULL;
		if (!known)
			return -1;
		*code = (unsigned char)values[known - names];
		return 0;
	}
	if (hexadecimal(r, code))
		return -1;
	if (*code < 0xd800 || *code > 0xdfff)
		return 0;
	if (*code > 0xdbff || !take(r, '\\') || !take(r, 'u') || hexadecimal(r, &low) || low < 0xdc00 || low > 0xdfff)
		return -1;
	*code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
	return 0;
}

static int string(struct reader *r)
{
	unsigned code;

	while (r->at < r->end) {
		unsigned char c = (unsigned char)*r->at++;

		if (c == '"')
			return 0;
		if (c < 0x20 || (c == '\\' && escape(r, &code)))
			return -1;
	}
	return -1;
}

static size_t digits(struct reader *r)
{
	const char *from = r->at;

	while (r->at < r->end && *r->at >= '0' && *r->at <= '9')
		r->at++;
	return (size_t)(r->at - from);
}

static int number(struct reader *r)
{
	take(r, '-');
	if (!take(r, '0') && digits(r) == 0)
		return -1;
	if (take(r, '.') && digits(r) == 0)
		return -1;
	if (take(r, 'e') || take(r, 'E')) {
		if (!take(r, '-'))
			take(r, '+');
		if (digits(r) == 0)
			return -1;
	}
	return 0;
}

static int word(struct reader *r, const char *text)
{
	size_t size = strlen(text);

	if ((size_t)(r->end - r->at) < size || memcmp(r->at, text, size) != 0)
		return -1;
	r->at += size;
	return 0;
}

static int any(struct reader *r, int depth, struct cs_value *value);

static int list(struct reader *r, int depth, char last, int named)
{
	struct cs_value inner;

	blanks(r);
	if (take(r, last))
		return 0;
	do {
		if (named) {
			blanks(r);
			if (!take(r, '"') || string(r))
				return -1;
			blanks(r);
			if (!take(r, ':'))
				return -1;
		}
		if (any(r, depth - 1, &inner))
			return -1;
		blanks(r);
	} while (take(r, ','));
	return take(r, last) ? 0 : -1;
}

static int any(struct reader *r, int depth, struct cs_value *value)
{
	int bad;

	blanks(r);
	if (r->at >= r->end || depth == 0)
		return -1;
	value->text = r->at;
	switch (*r->at) {
	case '{':
		r->at++;
		value->kind = CS_OBJECT;
		bad = list(r, depth, '}', 1);
		break;
	case '[':
		r->at++;
		value->kind = CS_ARRAY;
		bad = list(r, depth, ']', 0);
		break;
	case '"':
		r->at++;
		value->kind = CS_STRING;
		bad = string(r);
		break;
	case 't':
		value->kind = CS_TRUE;
		bad = word(r, "true");
		break;
	case 'f':
		value->kind = CS_FALSE;
		bad = word(r, "false");
		break;
	case 'n':
		value->kind = CS_NULL;
		bad = word(r, "null");
		break;
	default:
		value->kind = CS_NUMBER;
		bad = number(r);
	}
	value->size = (size_t)(r->at - value->text);
	return bad;
}

int cs_json(const char *text, size_t size, struct cs_value *value)
{
	struct reader r = {text, text + size};

	if (any(&r, MAX_DEPTH, value))
		return -1;
	blanks(&r);
	return r.at == r.end ? 0 : -1;
}

int cs_next(const struct cs_value *array, size_t *at, struct cs_value *value)
{
	if (array->kind != CS_ARRAY || *at >= array->size)
		return -1;
	struct reader r = {array->text + *at, array->text + array->size};

	r.at++; /* the bracket, or the comma behind the last element */
	if (any(&r, MAX_DEPTH, value))
		return -1; /* the end of an empty array */
	blanks(&r);
	*at = *r.at == ',' ? (size_t)(r.at - array->text) : array->size;
	return 0;
}

int cs_member(const struct cs_value *object, const char *name, struct cs_value *value)
{
	struct reader r = {object->text + 1, object->text + object->size};
	struct cs_value key = {CS_STRING, NULL, 0}, inner;
	char text[64];
	int found = -1;

	if (object->kind != CS_OBJECT)
		return -1;
	do {
		blanks(&r);
		key.text = r.at;
		if (!take(&r, '"') || string(&r))
			break; /* the end of an empty object */
		key.size = (size_t)(r.at - key.text);
		blanks(&r);
		if (!take(&r, ':') || any(&r, MAX_DEPTH, &inner))
			break;
		if (cs_string(&key, text, sizeof text) == 0 && strcmp(text, name) == 0) {
			*value = inner;
			found = 0;
		}
		blanks(&r);
	} while (take(&r, ','));
	return found;
}

/* encode writes a code as UTF-8. */
static size_t encode(unsigned code, char bytes[4])
{
	if (code < 0x80) {
		bytes[0] = (char)code;
		return 1;
	}
	size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;

	for (size_t i = n - 1; i > 0; i--) {
		bytes[i] = (char)(0x80 | (code & 0x3f));
		code >>= 6;
	}
	bytes[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | code);
	return n;
}

int cs_string(const struct cs_value *value, char *text, size_t size)
{
	if (value->kind != CS_STRING)
		return -1;
	struct reader r = {value->text + 1, value->text + value->size - 1};
	size_t used = 0;

	while (r.at < r.end) {
		char bytes[4] = {*r.at++};
		size_t n = 1;

		if (bytes[0] == '\\') {
			unsigned code;

			if (escape(&r, &code) || code == 0)
				return -1;
			n = encode(code, bytes);
		}
		if (n >= size - used)
			return -1;
		memcpy(text + used, bytes, n);
		used += n;
	}
	if (used >= size)
		return -1;
	text[used] = 0;
	return 0;
}

int cs_number(const struct cs_value *value, int64_t *number)
{
	int64_t n = 0;

	if (value->kind != CS_NUMBER)
		return -1;
	for (size_t i = 0; i < value->size; i++) {
		int d = value->text[i] - '0';

		if (d < 0 || d > 9 || n > (INT64_MAX - d) / 10)
			return -1;
		n = n * 10 + d;
	}
	*number = n;
	return 0;
}
