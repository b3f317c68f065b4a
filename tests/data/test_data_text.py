"""Text: a vocabulary of training words only, rows of word numbers."""

import gzip

import pytest

from potluck.core.errors import PotluckError
from potluck.data import load_data
from potluck.data.raw import build_vocabulary, encode, tokenise
from potluck.data.sources.text import every_fifth_row


def test_words_are_lower_case_and_keep_telling_marks():
    assert tokenise("Don't WIN £500_now!! It's #1") == [
        "don't",
        "win",
        "£",
        "500",
        "now",
        "!",
        "!",
        "it's",
        "1",
    ]


def test_a_vocabulary_counts_and_breaks_ties_by_the_alphabet():
    vocabulary = build_vocabulary(["b a c", "c b a", "c once"], size=4)
    assert vocabulary == {
        "c": 2,
        "a": 3,
    }  # c three times, a and b twice, once too rare; two places besides 0 and 1


def test_encoding_cuts_pads_and_marks_unknown_words():
    rows = encode(["a b a", "z", "a a a a a"], {"a": 2, "b": 3}, length=4)
    assert rows.tolist() == [[2, 3, 2, 0], [1, 0, 0, 0], [2, 2, 2, 2]]


def test_every_fifth_row_is_held_out():
    assert every_fifth_row(11).nonzero()[0].tolist() == [4, 9]


def news(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f'"{label}","{title}","{body}"\n' for label, title, body in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def test_ag_news_numbers_words_by_its_training_part_alone(tmp_path):
    news(tmp_path / "ag-news" / "train.csv", [(1, "war", "war ends"), (4, "chip", 'chip ""ends""')])
    news(tmp_path / "ag-news" / "test.csv.gz", [(3, "stock", "stock stock war")])
    data = load_data("ag-news", tmp_path)
    assert data.vocabulary == 5  # padding, unknown, chip, ends, war
    assert data.x.shape == (2, 64)
    assert data.x[0, :4].tolist() == [4, 4, 3, 0]
    assert data.test_x[0, :5].tolist() == [1, 1, 1, 4, 0]
    assert data.y.tolist() == [0, 3]
    assert data.test_y.tolist() == [2]
    assert "5 words" in repr(data)


def test_ag_news_with_the_test_file_alone_holds_out_every_fifth_row(tmp_path):
    news(tmp_path / "ag-news" / "test.csv", [(row % 4 + 1, f"word{row} word{row}", "x") for row in range(10)])
    data = load_data("ag-news", tmp_path)
    assert (len(data), len(data.test_y)) == (8, 2)
    assert data.test_y.tolist() == [0, 1]  # rows 4 and 9
    assert data.test_x[0, 0] == 1  # its word is unknown to the training rows


@pytest.mark.parametrize("name", ["SMSSpamCollection", "SMSSpamCollection.tsv", "SMSSpamCollection.tsv.gz"])
def test_sms_spam(tmp_path, name):
    path = tmp_path / "sms-spam" / name
    path.parent.mkdir()
    text = b"ham\thello you\nspam\tWIN\tnow win\nham\thello\nham\tyou\nspam\tprize prize\n"
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    data = load_data("sms-spam", tmp_path)
    assert data.y.tolist() == [0, 1, 0, 0]
    assert data.test_y.tolist() == [1]
    assert data.class_names == ("ham", "spam")
    assert data.vocabulary == 5  # hello, win, you; "prize" is only in the held-out row
    assert data.x[1, :3].tolist() == [3, 1, 3]


def test_damaged_texts_are_named(tmp_path):
    news(tmp_path / "ag-news" / "test.csv", [(5, "a", "b")])
    with pytest.raises(PotluckError, match=r"test\.csv' is damaged .*entry 1 is not a class from 1 to 4"):
        load_data("ag-news", tmp_path)
    (tmp_path / "sms-spam").mkdir()
    (tmp_path / "sms-spam" / "SMSSpamCollection").write_text("ham\tok\nhamm")
    with pytest.raises(PotluckError, match="line 2 is not ham or spam"):
        load_data("sms-spam", tmp_path)
    (tmp_path / "sms-spam" / "SMSSpamCollection").write_bytes(b"ham\t\xff\xfe\n")
    with pytest.raises(PotluckError, match=r"SMSSpamCollection' is not encoded in UTF-8 \(byte 0xff\)"):
        load_data("sms-spam", tmp_path)
    packed = gzip.compress(b"ham\tok\n" * 1000)
    (tmp_path / "sms-spam" / "SMSSpamCollection.tsv.gz").write_bytes(packed[:40])
    with pytest.raises(PotluckError, match=r"SMSSpamCollection\.tsv\.gz' is damaged"):
        load_data("sms-spam", tmp_path)
