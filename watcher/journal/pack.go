package journal

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"errors"
	"io"
)

// pack deflates text for a place in a line of JSON. What is in the dictionary need not be told again.
func pack(text, dictionary []byte) (string, error) {
	var b bytes.Buffer
	w, err := flate.NewWriterDict(&b, flate.BestCompression, dictionary)
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	return base64.RawStdEncoding.EncodeToString(b.Bytes()), err
}

var errPacked = errors.New("packed text is damaged, or does not fit what it builds on")

func unpack(packed string, dictionary []byte) ([]byte, error) {
	b, err := base64.RawStdEncoding.DecodeString(packed)
	if err != nil {
		return nil, errPacked
	}
	text, err := io.ReadAll(io.LimitReader(flate.NewReaderDict(bytes.NewReader(b), dictionary), maxLine))
	if err != nil {
		return nil, errPacked
	}
	return text, nil
}
